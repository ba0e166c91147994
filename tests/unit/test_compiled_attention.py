"""The bits of the compiled attention: what they do not depend on."""

from __future__ import annotations

import pytest
import torch

from flowforge.engine.attention.compiled import (
    CompiledAttention,
    can_compute,
    find_attention_library,
)
from flowforge.engine.attention.interface import LayerAttention
from flowforge.engine.attention.reads import Segment, Span
from flowforge.engine.attention.reference import dense_attention
from flowforge.engine.native.attention_library import TILE, AttentionLibrary, LayerCall

LENGTH, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 3 * TILE + 11, 6, 3, 40
LAYERS = {
    "all": LayerAttention(0.2),
    "window": LayerAttention(0.2, window=TILE + 9),
    "capped": LayerAttention(0.2, softcap=2.0),
}


class TwoThreads(AttentionLibrary):
    """Whatever torch uses."""

    @property
    def num_threads(self) -> int:
        return 2


@pytest.fixture(scope="module")
def library() -> AttentionLibrary:
    found = find_attention_library()
    if found is None:
        pytest.skip("there is no C compiler here")
    return found


def text(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v; some scores far above others, so that sums are scaled anew."""
    generator = torch.Generator().manual_seed(seed)
    q = 3 * torch.randn((LENGTH, NUM_HEADS, HEAD_DIM), generator=generator)
    k, v = torch.randn((2, LENGTH, NUM_KV_HEADS, HEAD_DIM), generator=generator)
    return q, k, v


def in_chunks(
    library: AttentionLibrary, layer: LayerAttention, chunk_len: int, page: int = LENGTH
) -> torch.Tensor:
    """A text's results, in chunks, on pages that lie in reversed order."""
    q, k, v = text(1)
    rows = torch.full((1, 2, NUM_KV_HEADS, 2 * LENGTH, HEAD_DIM), torch.nan)
    last = -(-LENGTH // page) - 1
    slots = [(last - at // page) * page + at % page for at in range(LENGTH)]
    parts: list[torch.Tensor] = []
    for start in range(0, LENGTH, chunk_len):
        stop = min(LENGTH, start + chunk_len)
        ranges = [(slots[first], min(page, stop - first)) for first in range(0, stop, page)]
        span = Span(0, stop - start, tuple(ranges))
        step = CompiledAttention(library, rows, torch.tensor(slots[start:stop]), (span,))
        parts.append(step.attend(0, q[start:stop], k[start:stop], v[start:stop], layer))
    return torch.cat(parts)


@pytest.mark.parametrize("name", LAYERS)
def test_chunks_and_places_of_pages_change_no_bit(library: AttentionLibrary, name: str) -> None:
    layer = LAYERS[name]
    whole = in_chunks(library, layer, LENGTH)

    assert (whole - dense_attention(*text(1), layer)).abs().max().item() < 1e-5
    for chunk_len, page in ((1, 16), (7, LENGTH), (TILE, 5), (TILE + 1, 16)):
        assert torch.equal(whole, in_chunks(library, layer, chunk_len, page))


@pytest.mark.parametrize("name", LAYERS)
def test_threads_change_no_bit(library: AttentionLibrary, name: str) -> None:
    found = in_chunks(TwoThreads(library.path), LAYERS[name], 50)

    assert torch.equal(in_chunks(library, LAYERS[name], 50), found)


@pytest.mark.parametrize(
    "bits", [0x7FC00000, 0x7F8001FF, -0x400000], ids=["quiet", "signalling", "negative"]
)
def test_rows_that_hold_no_number_show(library: AttentionLibrary, bits: int) -> None:
    q, k, v = (part[:1] for part in text(2))
    no_number = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    rows = no_number.expand((1, 2, NUM_KV_HEADS, LENGTH, HEAD_DIM)).clone()
    span = Span(0, 1, ((0, TILE + 1),))

    step = CompiledAttention(library, rows, torch.tensor([TILE]), (span,))

    assert step.attend(0, q, k, v, LAYERS["all"]).isnan().all()


# Numbers of queries about those that registers and batches hold; all kinds of a result's end.
@pytest.mark.parametrize(
    ("num_branches", "num_heads", "num_kv_heads", "head_dim"),
    [(3, 6, 3, 40), (7, 8, 1, 64), (25, 4, 2, 48), (49, 2, 2, 32), (33, 9, 3, 64), (5, 1, 1, 8)],
)
@pytest.mark.parametrize("name", LAYERS)
def test_branches_of_a_shared_beginning_have_the_bits_of_each_alone(
    library: AttentionLibrary,
    name: str,
    num_branches: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> None:
    generator = torch.Generator().manual_seed(5)
    shared, places = (
        2 * TILE,
        [(2 * TILE + 40 * idx, 3 + 9 * idx % 37) for idx in range(num_branches)],
    )
    num_slots = shared + 40 * num_branches
    rows = torch.randn((1, 2, num_kv_heads, num_slots, head_dim), generator=generator)
    spans = tuple(Span(idx, 1, ((0, shared), place)) for idx, place in enumerate(places))
    slots = torch.tensor([start + length - 1 for start, length in places])
    q = torch.randn((num_branches, num_heads, head_dim), generator=generator)
    k, v = torch.randn((2, num_branches, num_kv_heads, head_dim), generator=generator)
    segments = (Segment(0, shared, tuple(range(num_branches))),)

    together = CompiledAttention(library, rows, slots, spans, segments)
    found = together.attend(0, q, k, v, LAYERS[name])

    assert shared + sum(length for _, length in places) == together.num_rows_read
    for idx, span in enumerate(spans):
        one = slice(idx, idx + 1)
        alone = CompiledAttention(library, rows, slots[one], (Span(0, 1, span.ranges),))
        assert torch.equal(found[one], alone.attend(0, q[one], k[one], v[one], LAYERS[name]))


@pytest.mark.usefixtures("library")
def test_a_kernel_that_computes_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = AttentionLibrary.attend

    def wrong(library: AttentionLibrary, call: LayerCall) -> None:
        call.scale *= 1.1
        real(library, call)

    monkeypatch.setattr(AttentionLibrary, "attend", wrong)

    assert find_attention_library.__wrapped__() is None
    assert ["not used"] == [record.getMessage()[-8:] for record in caplog.records]


@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros((1, 2, 1, 4, 12)),
        torch.zeros((1, 2, 1, 4, 8), dtype=torch.bfloat16),
        torch.zeros((1, 2, 1, 4, 8), device="meta"),
    ],
    ids=["head_dim", "dtype", "device"],
)
def test_rows_of_other_kinds_are_torchs(rows: torch.Tensor) -> None:
    assert not can_compute(rows)
