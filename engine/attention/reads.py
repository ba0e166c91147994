"""Which KV rows a step reads, and for whom: decided once a step, the same for all of its layers.

Rows that several sequences of a step have in common are a segment: read once, with the queries of
all its readers stacked. Each sequence reads the rest of its context by itself. What a query finds
in its parts is merged by their weights. Splitting attention at a shared prefix is Hydragen's idea
(Juravsky et al., 2024), doing it along a prefix tree ChunkAttention's (Ye et al., 2024); fusing
chains, copying short runs and a threshold are what FlashInfer's and DeFT's plans teach.

Pure: rows are numbers here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from flowforge.engine.config import SharedAttention

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""(first slot, number of slots) runs of KV rows, in token order."""


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a step: its query rows and the KV rows it may read.

    query_start, query_len: rows of the step's q, k, v. ranges: cover all context including this
    step's own tokens.
    """

    query_start: int
    query_len: int
    ranges: Ranges

    @property
    def context_len(self) -> int:
        """Tokens this span's last query attends to."""
        return sum(length for _, length in self.ranges)


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that several spans of a step have in common: those of tokens [start, stop) of each.

    readers: indices of the spans. All rows are older than the step's own tokens.
    """

    start: int
    stop: int
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SplitPolicy:
    """When attention is split into parts that are merged; costs a call and a merge for each.

    min_saved: rows that a segment must save, (readers - 1) · rows, to be read once for all; None:
    never. min_view: rows from which one run of a scattered context is read where it lies instead of
    being copied; None: scattered contexts are always copied, so that results do not depend on where
    pages lie.
    """

    min_saved: int | None
    min_view: int | None


# A call and a merge take as long as reading so much again: benchmarks/shared_prefix.py.
_MIN_SAVED_BYTES = 512 * 1024
_MIN_VIEW_BYTES = 256 * 1024

NEVER_SPLIT = SplitPolicy(None, None)
"""Each sequence reads its own whole context."""


@dataclass(frozen=True, slots=True)
class OwnRead:
    """What one span reads first, by itself.

    whole: its one query sees all of `ranges`. causal: its queries see the step's own tokens, each
    up to itself; no ranges. masked: `ranges`, of which each query sees a part.
    """

    kind: Literal["whole", "causal", "masked"]
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class MoreRead:
    """Rows that all queries of some spans see, as one part of their attention."""

    readers: tuple[int, ...]
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """own: one for each span. more: what is merged into them, in this order."""

    own: tuple[OwnRead, ...]
    more: tuple[MoreRead, ...]


def split_policy(choice: SharedAttention, row_bytes: int) -> SplitPolicy:
    """What an operator's choice means for rows of so many bytes, K and V of one layer."""
    if choice == "off":
        return NEVER_SPLIT
    min_saved = 1 if choice == "on" else -(-_MIN_SAVED_BYTES // row_bytes)
    return SplitPolicy(min_saved, -(-_MIN_VIEW_BYTES // row_bytes))


def plan_reads(
    spans: tuple[Span, ...],
    segments: tuple[Segment, ...],
    policy: SplitPolicy,
    window: int | None = None,
) -> ReadPlan:
    """Decide who reads what in layers with this window.

    A span whose context a window cuts shares nothing and reads the rows within by itself.
    """
    is_cut = [window is not None and window < span.context_len for span in spans]
    kept = _worth_sharing(segments, policy, is_cut)
    shared: list[list[tuple[int, int]]] = [[] for _ in spans]
    more: list[MoreRead] = []
    for segment in kept:
        for reader in segment.readers:
            shared[reader].append((segment.start, segment.stop))
        ranges = cut_ranges(spans[segment.readers[0]].ranges, segment.start, segment.stop)
        more += [MoreRead(segment.readers, piece) for piece in _pieces(ranges, policy)]
    own: list[OwnRead] = []
    for idx, span in enumerate(spans):
        if window is not None and is_cut[idx]:
            own.append(_windowed(span, window))
            continue
        first, *rest = _own_reads(span, shared[idx], policy)
        own.append(first)
        more += [MoreRead((idx,), read.ranges) for read in rest]
    return ReadPlan(tuple(own), tuple(more))


def num_rows_read(plan: ReadPlan, spans: tuple[Span, ...]) -> int:
    """Rows that a plan reads in one layer, each as often as it is read."""
    own = sum(
        span.query_len if read.kind == "causal" else _num_rows(read.ranges)
        for read, span in zip(plan.own, spans, strict=True)
    )
    return own + sum(_num_rows(read.ranges) for read in plan.more)


def cut_ranges(ranges: Ranges, start: int, stop: int) -> Ranges:
    """The rows from `start` to `stop`, counted along the ranges."""
    kept: list[tuple[int, int]] = []
    position = 0
    for slot, length in ranges:
        first, last = max(start - position, 0), min(stop - position, length)
        if first < last:
            kept.append((slot + first, last - first))
        position += length
    return tuple(kept)


def _worth_sharing(
    segments: tuple[Segment, ...], policy: SplitPolicy, is_cut: list[bool]
) -> list[Segment]:
    if policy.min_saved is None:
        return []
    kept: list[Segment] = []
    for segment in segments:
        readers = tuple(reader for reader in segment.readers if not is_cut[reader])
        saved = (len(readers) - 1) * (segment.stop - segment.start)
        if saved >= max(policy.min_saved, 1):
            kept.append(Segment(segment.start, segment.stop, readers))
    return kept


def _own_reads(span: Span, shared: list[tuple[int, int]], policy: SplitPolicy) -> list[OwnRead]:
    """The parts of a span's context that are not in segments; the first holds its own tokens."""
    is_causal = span.query_len > 1
    stop = span.context_len - (span.query_len if is_causal else 0)
    ranges: list[tuple[int, int]] = []
    start = 0
    for first, last in [*sorted(shared), (stop, stop)]:
        ranges += cut_ranges(span.ranges, start, first)
        start = last
    reads = [OwnRead("whole", piece) for piece in _pieces(tuple(ranges), policy)]
    return [OwnRead("causal", ()), *reads] if is_causal else reads


def _windowed(span: Span, window: int) -> OwnRead:
    first_query = span.context_len - span.query_len
    first_row = max(0, first_query - window + 1)
    ranges = cut_ranges(span.ranges, first_row, span.context_len)
    return OwnRead("whole" if span.query_len == 1 else "masked", ranges)


def _pieces(ranges: Ranges, policy: SplitPolicy) -> list[Ranges]:
    """What is read in one call each: long runs as they lie, the short ones together."""
    if len(ranges) < 2 or policy.min_view is None:
        return [ranges] if ranges else []
    long = [run for run in ranges if run[1] >= policy.min_view]
    short = tuple(run for run in ranges if run[1] < policy.min_view)
    return [*((run,) for run in long), *([short] if short else [])]


def _num_rows(ranges: Ranges) -> int:
    return sum(length for _, length in ranges)
