"""Paged attention against the written-out reference, at every border of pages and windows."""

from __future__ import annotations

import itertools

import pytest
import torch

from flowforge.engine.attention.interface import LayerAttention
from flowforge.engine.attention.paged import PagedAttention
from flowforge.engine.attention.reads import Span
from flowforge.engine.attention.reference import dense_attention

# float32 sums in another order, over rows of 8.
TOLERANCE = 1e-5
PAGE = 16
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 8
NUM_SLOTS = 12 * PAGE

LAYERS = {
    "all": LayerAttention(0.35),
    "window 1": LayerAttention(0.35, window=1),
    "window inside a page": LayerAttention(0.35, window=PAGE - 1),
    "window of a page": LayerAttention(0.35, window=PAGE),
    "window over a page": LayerAttention(0.35, window=PAGE + 1),
    "window of two pages": LayerAttention(0.35, window=2 * PAGE),
    "window past the start": LayerAttention(0.35, window=1000),
    "capped": LayerAttention(0.35, softcap=0.5),
    "capped window": LayerAttention(0.35, window=PAGE + 1, softcap=0.5),
}
CONTEXTS = (1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE + 5)


def _slots(first_page: int, context_len: int) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """Pages of a context: one, then the rest as a run before it, so that no view covers both."""
    runs = [((first_page + 4) * PAGE, min(PAGE, context_len))]
    if context_len > PAGE:
        runs.append((first_page * PAGE, context_len - PAGE))
    slots = [start + offset for start, length in runs for offset in range(length)]
    return slots, tuple(runs)


def _random_rows(context_len: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    heads = (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)
    # Scores of some spread, so that a wrong row or cap shows.
    q, k, v = (2 * torch.randn(context_len, n, HEAD_DIM, generator=generator) for n in heads)
    return q, k, v


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("context_len", CONTEXTS)
def test_chunks_through_pages_equal_the_reference(name: str, context_len: int) -> None:
    layer = LAYERS[name]
    q, k, v = _random_rows(context_len, seed=context_len)
    slots, _ = _slots(2, context_len)
    expected = dense_attention(q, k, v, layer)

    for chunk_len in (1, 7, PAGE, 64):
        # NaN wherever nothing was written: whatever reads there shows.
        rows = torch.full((1, 2, NUM_KV_HEADS, NUM_SLOTS, HEAD_DIM), torch.nan)
        parts = []
        for start in range(0, context_len, chunk_len):
            stop = min(context_len, start + chunk_len)
            span = Span(0, stop - start, _slots(2, stop)[1])
            step = PagedAttention(rows, torch.tensor(slots[start:stop]), (span,))
            parts.append(step.attend(0, q[start:stop], k[start:stop], v[start:stop], layer))
        assert (torch.cat(parts) - expected).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("name", LAYERS)
def test_sequences_of_one_step_are_apart_whatever_their_lengths(name: str) -> None:
    layer = LAYERS[name]
    first, second = _random_rows(PAGE + 3, seed=1), _random_rows(PAGE - 2, seed=2)
    rows = torch.full((1, 2, NUM_KV_HEADS, NUM_SLOTS, HEAD_DIM), torch.nan)
    (slots, ranges), (more_slots, more_ranges) = _slots(0, PAGE + 3), _slots(6, PAGE - 2)
    spans = (Span(0, PAGE + 3, ranges), Span(PAGE + 3, PAGE - 2, more_ranges))

    step = PagedAttention(rows, torch.tensor(slots + more_slots), spans)
    q, k, v = (torch.cat(pair) for pair in zip(first, second, strict=True))
    found = step.attend(0, q, k, v, layer)

    expected = torch.cat([dense_attention(*first, layer), dense_attention(*second, layer)])
    assert (found - expected).abs().max().item() < TOLERANCE


def test_layers_of_one_step_may_have_different_windows() -> None:
    context_len = 2 * PAGE + 1
    slots, ranges = _slots(1, context_len)
    q, k, v = _random_rows(context_len, seed=3)
    rows = torch.full((2, 2, NUM_KV_HEADS, NUM_SLOTS, HEAD_DIM), torch.nan)
    step = PagedAttention(rows, torch.tensor(slots), (Span(0, context_len, ranges),))

    for (layer_idx, layer), _ in itertools.product(
        enumerate([LAYERS["all"], LAYERS["window of a page"]]), range(2)
    ):
        found = step.attend(layer_idx, q, k, v, layer)
        assert (found - dense_attention(q, k, v, layer)).abs().max().item() < TOLERANCE


def test_reference_sees_its_window_and_nothing_else() -> None:
    q, k, v = _random_rows(6, seed=4)
    layer = LayerAttention(0.35, window=2)

    found = dense_attention(q, k, v, layer)

    for position in range(6):
        first = max(0, position - 1)
        alone = dense_attention(
            q[position : position + 1],
            k[first : position + 1],
            v[first : position + 1],
            LayerAttention(0.35),
        )
        assert (found[position] - alone[0]).abs().max().item() < TOLERANCE
