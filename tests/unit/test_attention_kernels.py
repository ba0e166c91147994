"""Paged attention by the Triton kernels, interpreted, against dense attention at every border."""

from __future__ import annotations

import pytest
import torch
from kernel_heads import LAYERS, OLDER, PAGE, covering_heads, named, on_the_cpu

from flowforge.engine.attention.graph_attention import GraphTables
from flowforge.engine.attention.interface import LayerAttention
from flowforge.engine.attention.kernel_attention import (
    DeviceTables,
    KernelAttention,
    KernelBackend,
    attend,
    new_parts,
    tile_shape,
)
from flowforge.engine.attention.kernel_tables import decode_layout, step_tables
from flowforge.engine.attention.paged import PagedAttention
from flowforge.engine.attention.reads import NEVER_SPLIT, SplitPolicy
from flowforge.engine.float8 import to_float8
from flowforge.engine.kernels import reference
from flowforge.engine.kernels.checks import (
    FLOAT8_TOLERANCE,
    TOLERANCES,
    attention_error,
    relative_error,
)
from flowforge.engine.kernels.merging import PartLists, merge_parts
from flowforge.engine.kernels.paged_attention import LayerRows
from flowforge.engine.kernels.store import store_rows
from flowforge.engine.kernels.trial_steps import Heads, PagedStep, paged_step

SHARE = SplitPolicy(1, None)

pytestmark = on_the_cpu


@pytest.mark.parametrize("heads", covering_heads(), ids=named)
def test_single_queries_and_chunks_equal_the_reference(heads: Heads) -> None:
    singles = [(older + 1, 1) for older in OLDER]
    chunks = [(older + length, length) for older, length in ((0, PAGE + 1), (PAGE - 1, 3))]
    step = paged_step(heads, [*singles[:3], *chunks, *singles[3:]], seed=heads.head_dim)

    error = attention_error(step, LAYERS[(heads.group + heads.head_dim // 16) % len(LAYERS)])

    assert TOLERANCES[heads.dtype] > error


@pytest.mark.parametrize("window", [None, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 1000])
@pytest.mark.parametrize("softcap", [None, 0.5])
def test_windows_and_caps_equal_the_reference(window: int | None, softcap: float | None) -> None:
    step = paged_step(Heads(2, 2, 16), [(3 * PAGE + 5, 1), (2 * PAGE, PAGE + 3), (PAGE, 1)])

    assert attention_error(step, LayerAttention(0.35, window, softcap)) < 1e-5


@pytest.mark.parametrize("heads", covering_heads(2)[::4], ids=named)
def test_queries_that_share_rows_find_what_each_finds_alone(heads: Heads) -> None:
    # More readers than a tile holds, so that a segment is several items.
    num_readers = 16 // heads.group + 2
    lengths = [(2 * PAGE + 1 + 5 * idx, 1) for idx in range(num_readers)]
    step = paged_step(heads, lengths, shared_pages=2, seed=3)

    assert TOLERANCES[heads.dtype] > attention_error(step, LAYERS[0])


def test_shared_rows_are_read_once_and_chunks_read_for_themselves() -> None:
    lengths = [(2 * PAGE + 3, 1), (2 * PAGE + 9, 1), (2 * PAGE + 7, 4)]
    step = paged_step(Heads(1, 2, 16), lengths, shared_pages=2)
    shape = tile_shape(2, 1, 16, PAGE, torch.float32)
    tables = step_tables(step.spans, step.segments, SHARE, shape)
    alone = step_tables(step.spans, step.segments, NEVER_SPLIT, shape)
    by_torch = PagedAttention(step.rows, step.slots, step.spans, step.segments, NEVER_SPLIT)

    assert 2 * PAGE + 3 + 9 + (2 * PAGE + 7) == tables.num_rows_read
    assert alone.num_rows_read == by_torch.num_rows_read == sum(length for length, _ in lengths)
    assert attention_error(step, LAYERS[0]) < 1e-5


def test_layers_of_one_step_may_have_different_windows() -> None:
    step = paged_step(Heads(1, 2, 16), [(2 * PAGE + 1, 1), (PAGE + 2, PAGE)], shared_pages=0)
    attention = kernel_attention(step)

    for layer in (*LAYERS, *LAYERS):
        found = attention.attend(0, step.q, step.k, step.v, layer)
        assert relative_error(found, step.expected(layer)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_in_float8_are_read_by_their_scales(dtype: torch.dtype) -> None:
    heads = Heads(2, 3, 80, dtype)
    lengths = [(2 * PAGE + 3, 1), (2 * PAGE + 9, 1), (2 * PAGE + 20, 17)]
    step = paged_step(heads, lengths, shared_pages=2)

    error = attention_error(step, LAYERS[0], is_float8=True)
    assert TOLERANCES[dtype] / 10 < error < FLOAT8_TOLERANCE


def test_a_captured_step_reads_float8_rows_by_their_scales() -> None:
    step = paged_step(Heads(1, 2, 16), [(70, 1), (9, 1), (33, 1), (1, 1)])
    rows, scales = to_float8(step.rows)
    shape = tile_shape(2, 1, 16, PAGE, torch.float32)
    tables = GraphTables(KernelBackend(rows, SHARE, shape, scales), 4, 8 * PAGE, (None,))
    buffer = torch.zeros(tables.num_values, dtype=torch.int32)
    attention = tables.attention(step.slots, buffer, 2)
    tables.write(step.spans, step.segments, buffer.numpy())

    found = attention.attend(0, step.q, step.k, step.v, LAYERS[0])

    assert 1e-3 < relative_error(found, step.expected(LAYERS[0])) < FLOAT8_TOLERANCE


def test_tables_of_a_captured_step_serve_smaller_steps_at_the_same_place() -> None:
    heads = Heads(1, 2, 16)
    shape = tile_shape(2, 1, 16, PAGE, torch.float32)
    layout, num_parts = decode_layout(shape, num_queries=4, num_pages=8, most_context=8 * PAGE)
    buffer = torch.full((layout.num_values,), 2**30, dtype=torch.int32)
    parts = new_parts(num_parts, 2, 16, torch.device("cpu"))
    tables = DeviceTables.over(buffer, layout, shape, parts)

    for lengths in ([(5, 1)], [(8 * PAGE, 1), (33, 1), (1, 1), (40, 1)], [(70, 1), (9, 1)]):
        step = paged_step(heads, lengths, seed=len(lengths))
        host = step_tables(step.spans, step.segments, SHARE, shape)
        assert layout.holds(host)
        layout.pack(host, buffer.numpy())
        store_rows(step.k, step.v, step.rows[0], step.slots)
        found = attend(step.q, LayerRows(step.rows[0], None, PAGE), tables, LAYERS[0])
        assert relative_error(found, step.expected(LAYERS[0])) < 1e-5


def test_a_layout_says_what_it_does_not_hold() -> None:
    shape = tile_shape(2, 1, 16, PAGE, torch.float32)
    layout, _ = decode_layout(shape, num_queries=2, num_pages=4, most_context=4 * PAGE)
    fits, longer = (
        paged_step(Heads(1, 2, 16), [(length, 1)] * 2) for length in (4 * PAGE, 40 * PAGE)
    )

    assert layout.holds(step_tables(fits.spans, (), NEVER_SPLIT, shape))
    assert not layout.holds(step_tables(longer.spans, (), NEVER_SPLIT, shape))


def test_parts_are_merged_by_their_weights_and_none_are_zeros() -> None:
    generator = torch.Generator().manual_seed(1)
    parts = new_parts(5, 2, 16, torch.device("cpu"))
    parts.found.copy_(torch.randn(parts.found.shape, generator=generator))
    parts.logs.copy_(9 * torch.randn(parts.logs.shape, generator=generator))
    parts.logs[3] = -torch.inf
    lists = PartLists(
        *(
            torch.tensor(values, dtype=torch.int32)
            for values in ([3, 0, 1], [0, 3, 3, 5], [4, 0, 2, 1, 3], [3])
        )
    )
    found, expected = torch.full((2, 4, 2, 16), 7.0)

    merge_parts(parts, lists, found)
    reference.merge_parts(parts, lists, expected)

    torch.testing.assert_close(found, expected)
    assert (found[0] == 0).all()
    assert (found[2] == 7).all()


def kernel_attention(step: PagedStep) -> KernelAttention:
    _, num_heads, head_dim = step.q.shape
    shape = tile_shape(num_heads, step.rows.shape[2], head_dim, PAGE, step.q.dtype)
    return KernelAttention(step.rows, step.slots, step.spans, step.segments, shape=shape)
