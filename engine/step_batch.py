"""A step in plain numbers: what a plan says to whoever only computes it.

Pure and picklable: a forward pass in another process needs nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge.engine.attention.reads import Segment, Span

if TYPE_CHECKING:
    from flowforge.engine.attention.reads import Ranges
    from flowforge.engine.kv.moves import RowMove
    from flowforge.engine.kv.path import KvPath
    from flowforge.engine.step_plan import Chunk, StepPlan


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Moves of rows, in order, then one forward pass over all tokens.

    token_ids, positions, slots: one of each token; the slot is the KV row it is written to.
    spans: one for each sequence, of adjacent tokens. segments: rows that several spans read.
    logit_rows: tokens whose logits are wanted, a group for each call of the LM head, in order.
    feeds: for each token its place among those that the last step draws, -1 where it is known;
    empty where all are.
    """

    moves: tuple[RowMove, ...]
    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    spans: tuple[Span, ...]
    segments: tuple[Segment, ...]
    logit_rows: tuple[list[int], ...]
    feeds: list[int] = field(default_factory=list[int])

    @property
    def is_decode(self) -> bool:
        """Whether each sequence has one token: the step that is worth a graph."""
        return all(span.query_len == 1 for span in self.spans)


def step_batch(plan: StepPlan, page_size: int, most_logit_rows: int) -> StepBatch:
    """The numbers of a plan. most_logit_rows: of one call of the LM head.

    Its logits: of the last row of each chunk that is its sequence's last, each with those of its
    drafted tokens, in the plan's order, then of the scored rows of each chunk.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    last: list[int] = []
    scored: list[list[int]] = []
    feeds: list[int] = []
    for chunk in plan.chunks:
        span = _span(chunk, len(token_ids), page_size)
        spans.append(span)
        token_ids += chunk.token_ids
        positions += range(chunk.start, chunk.end)
        slots += _slots(span, chunk)
        feeds += [-1 if chunk.feed is None else chunk.feed] * span.query_len
        if chunk.is_last:
            behind = span.query_start + chunk.stop - chunk.start - 1
            last += range(behind, behind + 1 + len(chunk.drafted))
        rows = [span.query_start + row - chunk.start for row in chunk.scored_rows]
        scored += _groups(rows, most_logit_rows)
    return StepBatch(
        plan.moves,
        token_ids,
        positions,
        slots,
        tuple(spans),
        _segments(plan, page_size),
        (*_groups(last, most_logit_rows), *scored),
        feeds if any(feed >= 0 for feed in feeds) else [],
    )


def _groups(rows: list[int], most: int) -> list[list[int]]:
    return [rows[start : start + most] for start in range(0, len(rows), most)]


def _span(chunk: Chunk, query_start: int, page_size: int) -> Span:
    path = chunk.sequence.path
    assert path is not None, "a planned sequence has a path"
    return Span(query_start, chunk.end - chunk.start, _ranges(path, chunk.end, page_size))


def _segments(plan: StepPlan, page_size: int) -> tuple[Segment, ...]:
    return tuple(
        Segment(run.first_page * page_size, run.stop_page * page_size, run.readers)
        for run in plan.shared
    )


def _ranges(path: KvPath, num_tokens: int, page_size: int) -> Ranges:
    """(first slot, number of slots) runs that hold the path's first `num_tokens` rows."""
    ranges: list[tuple[int, int]] = []
    left = num_tokens
    for extent in path.extents:
        length = min(left, extent.num_pages * page_size)
        if length == 0:
            break
        ranges.append((extent.first_page * page_size, length))
        left -= length
    assert left == 0, f"{left} rows of a chunk were not reserved"
    return tuple(ranges)


def _slots(span: Span, chunk: Chunk) -> list[int]:
    """The rows that the chunk's own tokens are written to: the end of its context."""
    slots: list[int] = []
    skip = chunk.start
    for start, length in span.ranges:
        slots += range(start + min(skip, length), start + length)
        skip = max(0, skip - length)
    return slots
