"""A step in plain numbers: what a plan says to whoever only computes it.

Pure and picklable: a forward pass in another process needs nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.attention.reads import Segment, Span

if TYPE_CHECKING:
    from flowforge.engine.attention.reads import Ranges
    from flowforge.engine.kv.cache import RowMove
    from flowforge.engine.kv.path import KvPath
    from flowforge.engine.scheduler import Chunk, StepPlan

# Rows of one LM head call: wide enough to be efficient, narrow enough that 49,152 fp32 columns of
# logits stay in the megabytes.
_LM_HEAD_ROWS = 32


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Moves of rows, in order, then one forward pass over all tokens.

    token_ids, positions, slots: one of each token; the slot is the KV row it is written to.
    spans: one for each sequence, of adjacent tokens. segments: rows that several spans read.
    logit_rows: tokens whose logits are wanted, a group for each call of the LM head, in order.
    """

    moves: tuple[RowMove, ...]
    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    spans: tuple[Span, ...]
    segments: tuple[Segment, ...]
    logit_rows: tuple[list[int], ...]

    @property
    def is_decode(self) -> bool:
        """Whether each sequence has one token: the step that is worth a graph."""
        return all(span.query_len == 1 for span in self.spans)


def step_batch(plan: StepPlan, page_size: int) -> StepBatch:
    """The numbers of a plan.

    Its logits: of the last row of each chunk that is its sequence's last, each with those of its
    drafted tokens, in the plan's order, then of the scored rows of each chunk.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    last: list[int] = []
    scored: list[list[int]] = []
    for chunk in plan.chunks:
        span = _span(chunk, len(token_ids), page_size)
        spans.append(span)
        token_ids += chunk.token_ids
        positions += range(chunk.start, chunk.end)
        slots += _slots(span, chunk)
        if chunk.is_last:
            behind = span.query_start + chunk.stop - chunk.start - 1
            last += range(behind, behind + 1 + len(chunk.drafted))
        scored += _groups([span.query_start + row - chunk.start for row in chunk.scored_rows])
    return StepBatch(
        plan.moves,
        token_ids,
        positions,
        slots,
        tuple(spans),
        _segments(plan, page_size),
        (*_groups(last), *scored),
    )


def _groups(rows: list[int]) -> list[list[int]]:
    return [rows[start : start + _LM_HEAD_ROWS] for start in range(0, len(rows), _LM_HEAD_ROWS)]


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
