"""Norms, rotations, gates, stores and copies by the Triton kernels against plain torch."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from kernel_heads import on_the_cpu

from flowforge.engine.float8 import FLOAT8, to_float8
from flowforge.engine.kernels import reference, store
from flowforge.engine.kernels.checks import (
    TOLERANCES,
    check_float8_kernels,
    check_kernels,
    gate_error,
    norm_error,
    rotation_error,
)
from flowforge.engine.kernels.trial_steps import Heads
from flowforge.engine.kv.moves import RowCopy
from flowforge.engine.kv.pool import PageId
from flowforge.engine.kv.store import KvStore

pytestmark = on_the_cpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 63, 64, 576])
def test_norms_equal_the_reference(size: int, dtype: torch.dtype) -> None:
    assert norm_error(3, size, dtype, "cpu") < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("head_dim", "num_rows"), [(64, 64), (80, 80), (96, 48), (16, 0)])
def test_heads_are_normed_and_turned(
    head_dim: int, num_rows: int, has_norms: bool, dtype: torch.dtype
) -> None:
    heads = Heads(1, 3, head_dim, dtype)

    assert rotation_error(heads, num_rows, has_norms, "cpu") < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("size", [1, 1025])
def test_gates_equal_the_reference(
    size: int, activation: Literal["silu", "gelu_tanh"], dtype: torch.dtype
) -> None:
    assert gate_error(3, size, activation, dtype, "cpu") < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 80])
def test_rows_are_stored_where_their_slots_say(head_dim: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    # As they come out of one product: tokens lie apart.
    k, v = torch.randn((5, 2, 3, head_dim), generator=generator).to(dtype).unbind(1)
    slots = torch.tensor([7, 0, -1, 31, 16])
    found, expected = (torch.zeros((2, 3, 32, head_dim), dtype=dtype) for _ in range(2))

    store.store_rows(k, v, found, slots)
    reference.store_rows(k, v, expected, slots)

    assert torch.equal(found, expected)
    assert found[:, :, 7].count_nonzero() == 2 * 3 * head_dim
    assert (found[:, :, 1] == 0).all()


def test_rows_in_float8_have_the_numbers_of_torch_and_a_scale_for_each_head() -> None:
    generator = torch.Generator().manual_seed(2)
    sizes = torch.tensor([1e-6, 1.0, 300.0, 0.0])[:, None, None]
    k, v = sizes * torch.randn((2, 4, 3, 80), generator=generator)
    slots = torch.arange(4)
    found, expected = (torch.zeros((2, 3, 4, 80), dtype=FLOAT8) for _ in range(2))
    scales, expected_scales = torch.zeros((2, 2, 3, 4))

    store.store_rows(k, v, found, slots, scales)
    reference.store_rows(k, v, expected, slots, expected_scales)

    assert torch.equal(expected_scales, scales)
    assert torch.equal(expected.float(), found.float())
    rows, by_torch = to_float8(torch.stack((k, v)).transpose(1, 2))
    assert torch.equal(by_torch, scales)
    assert torch.equal(rows.float(), found.float())


@pytest.mark.parametrize("size", [1, 80])
def test_runs_of_rows_are_copied_in_every_plane(size: int) -> None:
    rows = torch.arange(6 * 64 * size, dtype=torch.float32).view(6, 64, size)
    found, expected = rows.clone(), rows.clone()
    runs = (torch.tensor([0, 16]), torch.tensor([32, 50]), torch.tensor([15, 1]))

    store.copy_slots(found, *runs)
    reference.copy_slots(expected, *runs)

    assert torch.equal(expected, found)
    assert not torch.equal(rows, found)


def test_copies_that_need_each_other_are_carried_out_one_after_the_other() -> None:
    pages = [(0, 1, 3), (1, 2, 3), (4, 5, 1), (6, 5, 1), (7, 6, 2)]
    copies = [RowCopy(PageId(one), PageId(other), rows) for one, other, rows in pages]

    assert [copies[:1], copies[1:3], copies[3:4], copies[4:]] == store.waves_of(copies)
    assert [] == store.waves_of([])


def test_pages_are_copied_as_a_store_copies_them() -> None:
    by_torch = KvStore(
        num_layers=2,
        num_kv_heads=3,
        head_dim=16,
        num_pages=8,
        page_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    by_torch.rows.copy_(torch.arange(by_torch.rows.numel()).view_as(by_torch.rows))
    rows = by_torch.rows.clone()
    pages = [(0, 1, 3), (1, 2, 4), (4, 5, 1), (6, 5, 2)]
    copies = [RowCopy(PageId(one), PageId(other), count) for one, other, count in pages]

    by_torch.move_rows(copies)
    store.copy_pages(rows, copies, 4)

    assert torch.equal(by_torch.rows, rows)


def test_every_kernel_passes_its_own_check() -> None:
    checks = list(check_kernels("cpu")) + list(check_float8_kernels("cpu"))

    assert [] == [check for check in checks if not check.is_right]
    assert 10 == len({check.name for check in checks})
