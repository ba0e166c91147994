"""Kernels held to their references on random numbers: for tests, and for who asks a machine.

Each check gives one relative error, ‖found − expected‖ / ‖expected‖, of results in a dtype against
the reference in float32 on the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from flowforge.engine.attention.interface import LayerAttention
from flowforge.engine.attention.kernel_attention import KernelAttention, tile_shape
from flowforge.engine.attention.reads import NEVER_SPLIT, SplitPolicy
from flowforge.engine.float8 import to_float8
from flowforge.engine.kernels import gates, linears, norms, reference, rotary
from flowforge.engine.kernels.trial_steps import Heads, PagedStep, paged_step
from flowforge.engine.models.packed import pack_float8, pack_groups
from flowforge.engine.models.quantized import GROUP_BYTES, GROUP_SIZE
from flowforge.engine.models.rope import RotaryEmbedding
from flowforge.engine.models.rope_config import RopeConfig
from flowforge.engine.row_draw import RowDraw
from flowforge.engine.row_sampler import HostSampler, KernelSampler
from flowforge.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from flowforge.engine.models.packed import PackedMatrix
    from flowforge.engine.models.quantized import QuantizedKind

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Sums in another order; results, and weights of V, rounded to 8 or 11 bits."""

FLOAT8_TOLERANCE = 6e-2
"""Rows rounded to 4 bits: up to 1/16 of each number, evenly spread."""

_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """error: relative; right when it is at most `tolerance`."""

    name: str
    error: float
    tolerance: float

    @property
    def is_right(self) -> bool:
        """NaN is not."""
        return self.error <= self.tolerance


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """‖found − expected‖ / ‖expected‖ in float32."""
    found, expected = found.float(), expected.float()
    return float((found - expected).norm() / expected.norm())


def check_kernels(device: str, dtype: torch.dtype = torch.bfloat16) -> Iterator[KernelCheck]:
    """Every kernel that reads no float8, once, with the heads of an 8B model.

    Sizes are as small as can be for every loop of a kernel to run: an engine asks at its start.
    Where kernels are interpreted they are smaller still.
    """
    is_small = device == "cpu"
    tolerance = TOLERANCES[dtype]
    heads = Heads(2, 2, 64, dtype) if is_small else Heads(8, 4, 128, dtype)
    size, lengths = (96, [(33, 1), (20, 7)]) if is_small else (1024, [(600, 1), (300, 129)])
    attended = attention_error(paged_step(heads, lengths, device=device), LayerAttention(0.1))
    yield KernelCheck("attention", attended, tolerance)
    shared, num_pages = ([(40, 1), (35, 1)], 1) if is_small else ([(520, 1), (531, 1)] * 9, 32)
    step = paged_step(heads, shared, shared_pages=num_pages, device=device)
    yield KernelCheck("shared attention", attention_error(step, LayerAttention(0.1)), tolerance)
    yield KernelCheck("norms", norm_error(3, size, dtype, device), tolerance)
    yield KernelCheck("rotation", rotation_error(heads, heads.head_dim, True, device), tolerance)
    yield KernelCheck("gate", gate_error(3, size, "silu", dtype, device), tolerance)
    for kind in ("q4_1", "q8_0"):
        matrix = random_matrix(kind, size, size, device)
        yield KernelCheck(f"linear {kind}", linear_error(matrix, 5, dtype), tolerance)
    yield KernelCheck("sampling", sampling_error(256 if is_small else 4096, device), 0.0)


def check_float8_kernels(device: str, dtype: torch.dtype = torch.bfloat16) -> Iterator[KernelCheck]:
    """Those that read float8, in the same way: not every GPU that has the others knows it."""
    is_small = device == "cpu"
    heads = Heads(2, 2, 64, dtype) if is_small else Heads(8, 4, 128, dtype)
    step = paged_step(
        heads, [(33, 1), (20, 7)] if is_small else [(600, 1), (300, 129)], device=device
    )
    attended = attention_error(step, LayerAttention(0.1), is_float8=True)
    yield KernelCheck("attention float8", attended, FLOAT8_TOLERANCE)
    size = 96 if is_small else 1024
    matrix = random_matrix("float8", size, size, device)
    yield KernelCheck("linear float8", linear_error(matrix, 5, dtype), TOLERANCES[dtype])


def sampling_error(vocab_size: int, device: str) -> float:
    """Of draws with every limit, the share whose token is not the host's."""
    params = [
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=5),
        SamplingParams(
            temperature=1.1, repetition_penalty=1.3, frequency_penalty=0.2, logit_bias={3: 2.0}
        ),
    ]
    seen = range(0, vocab_size, 3)
    mask = np.full(vocab_size // 32, 0x77777777, dtype=np.uint32)
    draws = [
        RowDraw(row, one, 10 + row, mask, (5,), seen[:9], seen[9:12])
        for row, one in enumerate(params)
    ]
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn((len(draws), vocab_size), generator=generator)
    found: list[int] = KernelSampler().sample(logits.to(device), draws).tolist()
    expected: list[int] = HostSampler().sample(logits, draws).tolist()
    return sum(a != b for a, b in zip(found, expected, strict=True)) / len(draws)


def attention_error(step: PagedStep, layer: LayerAttention, *, is_float8: bool = False) -> float:
    """Of a whole step; its shared rows are read once. is_float8: rows are kept in float8."""
    expected = step.expected(layer)
    rows, scales = step.rows, None
    if is_float8:
        rows, scales = to_float8(step.rows)
    _, num_heads, head_dim = step.q.shape
    shape = tile_shape(num_heads, rows.shape[2], head_dim, step.page_size, step.q.dtype)
    policy = SplitPolicy(1, None) if step.segments else NEVER_SPLIT
    attention = KernelAttention(
        rows, step.slots, step.spans, step.segments, policy, shape=shape, scales=scales
    )
    return relative_error(attention.attend(0, step.q, step.k, step.v, layer), expected)


def norm_error(num_rows: int, size: int, dtype: torch.dtype, device: str) -> float:
    """The worst of a norm alone, behind a sum, and behind a sum and a norm."""
    x, residual = _random((2, num_rows, size), dtype, device)
    weight, post = 1 + 0.2 * _random((2, size), torch.float32, device)
    pairs = [(norms.rms_norm(x, weight, _EPS), reference.rms_norm(x, weight, _EPS))]
    for last in (None, post):
        found = norms.add_rms_norm(x, residual, weight, _EPS, last)
        pairs += zip(found, reference.add_rms_norm(x, residual, weight, _EPS, last), strict=True)
    return max(relative_error(*pair) for pair in pairs)


def rotation_error(heads: Heads, num_rows: int, has_norms: bool, device: str) -> float:
    """num_rows: numbers of a head that turn; 0 for none."""
    num_heads = heads.num_kv_heads * heads.group
    shape = (3, num_heads + 2 * heads.num_kv_heads, heads.head_dim)
    projected = _random(shape, heads.dtype, device)
    angles = None
    if num_rows:
        rotary_embedding = RotaryEmbedding(RopeConfig(1e4, num_rows), torch.device(device))
        positions = torch.tensor([0, 7, 1000], device=device)
        angles = rotary_embedding.angles(positions, heads.dtype)
    q, k = 1 + 0.2 * _random((2, heads.head_dim), heads.dtype, device)
    arguments = (num_heads, heads.num_kv_heads, angles, (q, k) if has_norms else None, _EPS)
    found = rotary.turn_heads(projected, *arguments)
    return relative_error(found, reference.turn_heads(projected, *arguments))


def gate_error(
    num_rows: int,
    size: int,
    activation: Literal["silu", "gelu_tanh"],
    dtype: torch.dtype,
    device: str,
) -> float:
    """Of a gate over so many numbers a row."""
    gate_up = 4 * _random((num_rows, 2 * size), dtype, device)
    return relative_error(gates.gated(gate_up, activation), reference.gated(gate_up, activation))


def random_matrix(
    kind: QuantizedKind | Literal["float8"], num_rows: int, num_columns: int, device: str
) -> PackedMatrix:
    """Random groups, as a file could hold them."""
    if kind == "float8":
        return pack_float8(_random((num_rows, num_columns), torch.float32, device))
    shape = (num_rows, num_columns // GROUP_SIZE)
    generator = torch.Generator().manual_seed(num_rows)
    stored = torch.randint(
        0, 256, (*shape, GROUP_BYTES[kind]), dtype=torch.uint8, generator=generator
    )
    numbers = torch.rand((*shape, 2), generator=generator).to(torch.float16) - 0.5
    num_numbers = 2 if kind == "q4_1" else 1
    stored[..., : 2 * num_numbers] = numbers[..., :num_numbers].contiguous().view(torch.uint8)
    return pack_groups(kind, stored.to(device))


def linear_error(matrix: PackedMatrix, num_rows: int, dtype: torch.dtype) -> float:
    """Of the product of so many rows."""
    x = _random((num_rows, matrix.shape[1]), dtype, str(matrix.values.device))
    return relative_error(linears.packed_linear(x, matrix), reference.packed_linear(x, matrix))


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).to(device)
