"""Random steps over scattered pages, with what dense attention says: what kernels are tried on."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flowforge.engine.attention.reads import Segment, Span
from flowforge.engine.attention.reference import dense_attention

if TYPE_CHECKING:
    from flowforge.engine.attention.interface import LayerAttention


@dataclass(frozen=True, slots=True)
class Heads:
    """Shape and dtype of what is attended to."""

    num_kv_heads: int
    group: int
    head_dim: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class PagedStep:
    """A step whose older rows are written; rows of free pages and of the step's own are NaN.

    contexts: K and V of each sequence, [context_len, num_kv_heads, head_dim].
    """

    rows: torch.Tensor
    slots: torch.Tensor
    spans: tuple[Span, ...]
    segments: tuple[Segment, ...]
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    contexts: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    page_size: int

    def expected(self, layer: LayerAttention) -> torch.Tensor:
        """What dense attention says, in float32."""
        parts = [
            dense_attention(
                self.q[span.query_start : span.query_start + span.query_len].float(),
                k.float(),
                v.float(),
                layer,
            )
            for span, (k, v) in zip(self.spans, self.contexts, strict=True)
        ]
        return torch.cat(parts)


def paged_step(
    heads: Heads,
    sequences: list[tuple[int, int]],
    *,
    page_size: int = 16,
    shared_pages: int = 0,
    seed: int = 0,
    device: str = "cpu",
) -> PagedStep:
    """sequences: context length, its queries included, and number of queries, of each.

    shared_pages: pages that all begin with; each context is longer than they and its queries.
    """
    generator = torch.Generator().manual_seed(seed)
    chance = random.Random(seed)
    num_pages = sum(-(-context // page_size) for context, _ in sequences) + shared_pages + 3
    free = list(range(num_pages))
    chance.shuffle(free)
    trunk = [free.pop() for _ in range(shared_pages)]
    common = _rows(generator, shared_pages * page_size, heads)
    rows = torch.full(
        (1, 2, heads.num_kv_heads, num_pages * page_size, heads.head_dim), torch.nan
    ).to(heads.dtype)
    spans: list[Span] = []
    slots: list[int] = []
    contexts: list[tuple[torch.Tensor, torch.Tensor]] = []
    for context_len, query_len in sequences:
        own_pages = -(-context_len // page_size) - shared_pages
        pages = trunk + [free.pop() for _ in range(own_pages)]
        of_context = [
            pages[at // page_size] * page_size + at % page_size for at in range(context_len)
        ]
        own = _rows(generator, context_len - len(trunk) * page_size, heads)
        k, v = (torch.cat(parts) for parts in zip(common, own, strict=True))
        old = context_len - query_len
        for side, part in enumerate((k, v)):
            rows[0, side][:, of_context[:old]] = part[:old].transpose(0, 1)
        spans.append(Span(len(slots), query_len, _ranges(pages, context_len, page_size)))
        slots += of_context[old:]
        contexts.append((k, v))
    num_heads = heads.num_kv_heads * heads.group
    q = 2 * torch.randn((len(slots), num_heads, heads.head_dim), generator=generator)
    k, v = (
        torch.cat(
            [parts[side][-span.query_len :] for span, parts in zip(spans, contexts, strict=True)]
        )
        for side in (0, 1)
    )
    segments = (
        (Segment(0, shared_pages * page_size, tuple(range(len(spans)))),) if shared_pages else ()
    )
    return PagedStep(
        rows.to(device),
        torch.tensor(slots, device=device),
        tuple(spans),
        segments,
        q.to(heads.dtype).to(device),
        k.to(device),
        v.to(device),
        tuple((k.to(device), v.to(device)) for k, v in contexts),
        page_size,
    )


def _rows(
    generator: torch.Generator, num_rows: int, heads: Heads
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (2, num_rows, heads.num_kv_heads, heads.head_dim)
    k, v = torch.randn(shape, generator=generator).to(heads.dtype)
    return k, v


def _ranges(pages: list[int], context_len: int, page_size: int) -> tuple[tuple[int, int], ...]:
    """Adjacent pages as one range."""
    ranges: list[tuple[int, int]] = []
    left = context_len
    for page in pages:
        length = min(page_size, left)
        left -= length
        if ranges and sum(ranges[-1]) == page * page_size:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + length)
        else:
            ranges.append((page * page_size, length))
    return tuple(ranges)
