"""The GPU kernels where they are for: the whole product of heads, long contexts, wide rows."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from kernel_heads import DTYPES, LAYERS, OLDER, PAGE, all_heads, named

from flowforge.engine.kernels.checks import (
    FLOAT8_TOLERANCE,
    TOLERANCES,
    attention_error,
    check_kernels,
    gate_error,
    linear_error,
    norm_error,
    random_matrix,
    rotation_error,
)
from flowforge.engine.kernels.row_params import RowParams
from flowforge.engine.kernels.sampling import sample_rows
from flowforge.engine.kernels.trial_steps import Heads, paged_step
from flowforge.engine.sampling import SamplingParams, sample

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

DEVICE = "cuda"


@pytest.mark.parametrize("heads", all_heads(num_kv_heads=8), ids=named)
def test_attention_equals_the_reference(heads: Heads) -> None:
    singles = [(2048 + older + 1, 1) for older in OLDER]
    chunks = [(older + length, length) for older, length in ((0, 300), (PAGE - 1, 3), (1000, 129))]
    step = paged_step(heads, [*singles, *chunks, (1, 1)], seed=heads.head_dim, device=DEVICE)

    for layer in LAYERS:
        assert TOLERANCES[heads.dtype] > attention_error(step, layer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 3, 8])
def test_many_readers_of_one_prefix_find_what_each_finds_alone(
    group: int, dtype: torch.dtype
) -> None:
    lengths = [(1024 + 1 + 7 * idx, 1) for idx in range(70)]
    heads = Heads(8, group, 128, dtype)
    step = paged_step(heads, lengths, shared_pages=1024 // PAGE, device=DEVICE)

    assert TOLERANCES[dtype] > attention_error(step, LAYERS[0])
    assert FLOAT8_TOLERANCE > attention_error(step, LAYERS[0], is_float8=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_of_layers_equal_the_reference(dtype: torch.dtype) -> None:
    for size in (576, 4096, 14336):
        assert TOLERANCES[dtype] > norm_error(64, size, dtype, DEVICE)
        assert TOLERANCES[dtype] > gate_error(64, size, "silu", dtype, DEVICE)
        assert TOLERANCES[dtype] > gate_error(64, size, "gelu_tanh", dtype, DEVICE)
    for num_rows in (0, 64, 128):
        assert TOLERANCES[dtype] > rotation_error(Heads(8, 4, 128, dtype), num_rows, True, DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0", "float8"])
def test_packed_products_equal_the_reference(
    kind: Literal["q4_0", "q4_1", "q8_0", "float8"], dtype: torch.dtype
) -> None:
    matrix = random_matrix(kind, 4096, 14336, DEVICE)

    for num_rows in (1, 7, 16, 33, 64):
        assert TOLERANCES[dtype] > linear_error(matrix, num_rows, dtype)


def test_whole_vocabularies_give_the_tokens_of_the_cpu() -> None:
    params = [
        SamplingParams(temperature=0.5 + 0.1 * seed, top_k=top_k, top_p=top_p, seed=seed)
        for seed in range(8)
        for top_k, top_p in ((0, 1.0), (40, 1.0), (0, 0.9), (50, 0.95))
    ]
    generator = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn((len(params), 128_256), generator=generator)
    rows = RowParams.of(params, range(len(params)), DEVICE)

    found = sample_rows(logits.to(DEVICE), rows).tolist()

    expected = [
        sample(row, one, position=idx)
        for idx, (row, one) in enumerate(zip(logits.numpy(), params, strict=True))
    ]
    assert expected == found


def test_every_kernel_passes_its_own_check() -> None:
    assert [] == [check for check in check_kernels(DEVICE) if not check.is_right]
