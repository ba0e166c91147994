"""A step's reads as tables of numbers for the attention kernels: one integer array, one copy.

Made once a step, for all layers of one window, without a loop over rows or pages: the plan of
`reads.py` says who reads what, and each read is cut into work items of a fixed number of rows.
Chunks of prompts are tiles of queries that read their whole context, since they read it once for
many queries anyway; so only single queries share. Pure: no device is touched here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from flowforge.engine.attention.reads import Segment, num_rows_read, plan_reads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from flowforge.engine.attention.reads import Ranges, Span, SplitPolicy

    Ints: TypeAlias = npt.NDArray[np.int32]

NAMES = (
    "counts",
    "pages",
    "queries",
    "own",
    "shared",
    "merged",
    "merged_first",
    "merged_parts",
    "tiles",
)
"""The tables, in the order in which they lie. counts: of own, shared and merged."""

ITEM_COLUMNS, TILE_COLUMNS = 6, 4


@dataclass(frozen=True, slots=True)
class TileShape:
    """How work is cut.

    group: query heads of a KV head. own_rows, shared_rows, chunk_rows: rows of a tile of queries
    times heads. split: KV rows of an item. page_size: tokens of a page.
    """

    group: int
    own_rows: int
    shared_rows: int
    chunk_rows: int
    split: int
    page_size: int

    def queries_of(self, tile_rows: int) -> int:
        """How many queries a tile holds."""
        return tile_rows // self.group


@dataclass(frozen=True, slots=True)
class StepTables:
    """What the kernels read of one step, for layers of one window.

    arrays: one for each of `NAMES`; items and tiles are rows as the kernels have them. num_parts:
    results of items that are merged. num_rows_read: KV rows, each as often as it is read.
    """

    arrays: Mapping[str, Ints]
    num_parts: int
    num_rows_read: int


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Where each table begins in one array, and how much of it there can be.

    offsets, sizes: numbers, by table. Fixed while a captured graph is used, so that a step only
    writes other numbers at the same places.
    """

    offsets: Mapping[str, int]
    sizes: Mapping[str, int]

    @property
    def num_values(self) -> int:
        """Length of the array."""
        return self.offsets[NAMES[-1]] + self.sizes[NAMES[-1]]

    @classmethod
    def of_sizes(cls, sizes: Mapping[str, int]) -> TableLayout:
        """Tables behind each other, each at a place that kernels read quickly."""
        offsets: dict[str, int] = {}
        at = 0
        for name in NAMES:
            offsets[name] = at
            at += -(-sizes[name] // 4) * 4  # 16 bytes
        return cls(offsets, dict(sizes))

    def holds(self, tables: StepTables) -> bool:
        """Whether these tables have room."""
        return all(tables.arrays[name].size <= self.sizes[name] for name in NAMES)

    def pack(self, tables: StepTables, into: Ints) -> None:
        """Write tables that it holds to their places; what is behind them stays as it is."""
        assert self.holds(tables), "a table is larger than its place"
        for name, array in tables.arrays.items():
            into[self.offsets[name] : self.offsets[name] + array.size] = array.ravel()


def layout_of(tables: StepTables) -> TableLayout:
    """Just large enough for these tables."""
    return TableLayout.of_sizes({name: tables.arrays[name].size for name in NAMES})


def decode_layout(
    shape: TileShape, *, num_queries: int, num_pages: int, most_context: int
) -> tuple[TableLayout, int]:
    """For steps of so many single queries, and how many parts they have at most.

    num_pages: of one context at most. most_context: tokens of one context. A step whose queries
    part from each other at many depths may have more items than that: `holds` says.
    """
    # Each query has its splits, and one more wherever shared rows end.
    items = num_queries * (2 * -(-most_context // shape.split) + 1)
    sizes = {
        "counts": 3,
        "pages": 2 * num_queries * num_pages,
        "queries": num_queries * (1 + num_pages),
        "own": items * ITEM_COLUMNS,
        "shared": items * ITEM_COLUMNS,
        "merged": num_queries,
        "merged_first": num_queries + 1,
        "merged_parts": items,
        "tiles": 0,
    }
    return TableLayout.of_sizes(sizes), items


def step_tables(
    spans: tuple[Span, ...],
    segments: tuple[Segment, ...],
    policy: SplitPolicy,
    shape: TileShape,
    window: int | None = None,
) -> StepTables:
    """The tables of a step for layers of this window."""
    singles = [idx for idx, span in enumerate(spans) if span.query_len == 1]
    chunks = [span for span in spans if span.query_len > 1]
    reads, num_own, num_rows = _single_reads(spans, singles, segments, policy, window)
    tables = _Pages(shape.page_size)
    places = [tables.add(read.ranges) for read in reads]
    own, shared = (
        _items(reads[part], places[part], shape, tile_rows, first_query)
        for part, tile_rows, first_query in (
            (slice(0, num_own), shape.own_rows, 0),
            (slice(num_own, None), shape.shared_rows, num_own),
        )
    )
    queries = np.array([query for read in reads for query in read.queries], dtype=np.int32)
    num_parts = _number_parts(own, shared)
    merged = np.array([spans[idx].query_start for idx in singles], dtype=np.int32)
    first, parts = _part_lists(np.concatenate((own, shared)), queries, merged)
    tiles = _tiles(chunks, tables, shape)
    counts = np.array([len(own), len(shared), len(merged)], dtype=np.int32)
    arrays = (counts, tables.flat(), queries, own, shared, merged, first, parts, tiles)
    of_chunks = sum(_rows_within(span, window) for span in chunks)
    named: dict[str, Ints] = dict(zip(NAMES, arrays, strict=True))
    return StepTables(named, num_parts, num_rows + of_chunks)


@dataclass(frozen=True, slots=True)
class _Read:
    """Rows that some queries, rows of q, read whole."""

    ranges: Ranges
    queries: Sequence[int]


def _single_reads(
    spans: tuple[Span, ...],
    singles: list[int],
    segments: tuple[Segment, ...],
    policy: SplitPolicy,
    window: int | None,
) -> tuple[list[_Read], int, int]:
    """What single queries read: each its own, then what they share; how many are own; rows."""
    place = {idx: at for at, idx in enumerate(singles)}
    kept = tuple(spans[idx] for idx in singles)
    among = tuple(
        replace(segment, readers=readers)
        for segment in segments
        for readers in [tuple(place[one] for one in segment.readers if one in place)]
        if len(readers) > 1
    )
    # A piece of a read costs nothing here, so runs of pages stay together.
    plan = plan_reads(kept, among, replace(policy, min_view=None), window)
    own = [
        _Read(read.ranges, (span.query_start,))
        for read, span in zip(plan.own, kept, strict=True)
        if read.ranges
    ]
    more = [
        _Read(read.ranges, [kept[reader].query_start for reader in read.readers])
        for read in plan.more
    ]
    return own + more, len(own), num_rows_read(plan, kept)


class _Pages:
    """Page tables of reads, behind each other."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._runs: list[tuple[int, int]] = []  # first page, number of pages
        self._num_pages = 0

    def add(self, ranges: Ranges) -> tuple[int, int, int]:
        """Where the table of these rows begins, its first row in it, and the one behind its last.

        Only the first range may begin inside a page, and only the last end there.
        """
        begin, size = self._num_pages, self._page_size
        first_row = ranges[0][0] % size
        num_rows = 0
        for slot, length in ranges:
            first, last = slot // size, (slot + length - 1) // size
            self._runs.append((first, last - first + 1))
            self._num_pages += last - first + 1
            num_rows += length
        return begin, first_row, first_row + num_rows

    def flat(self) -> Ints:
        """All tables."""
        runs = np.array(self._runs, dtype=np.int32).reshape(-1, 2)
        first, count = runs[:, 0], runs[:, 1]
        behind = np.cumsum(count)
        shift = np.repeat(first - (behind - count), count)
        pages: Ints = (np.arange(self._num_pages) + shift).astype(np.int32)
        return pages


def _items(
    reads: list[_Read],
    places: list[tuple[int, int, int]],
    shape: TileShape,
    tile_rows: int,
    first_query: int,
) -> Ints:
    """Items of reads, their parts not numbered; their queries begin at `first_query`."""
    per_item = shape.queries_of(tile_rows)
    pages, first, stop = np.array(places, dtype=np.int64).reshape(-1, 3).T
    num_queries = np.array([len(read.queries) for read in reads], dtype=np.int64)
    queries = first_query + np.cumsum(num_queries) - num_queries
    num_groups = -(-num_queries // per_item)
    num_items = -(-(stop - first) // shape.split) * num_groups
    of_read = np.repeat(np.arange(len(reads)), num_items)
    within = np.arange(len(of_read)) - np.repeat(np.cumsum(num_items) - num_items, num_items)
    # Items of the same rows beside each other: they meet in the cache.
    split, group = np.divmod(within, num_groups[of_read])
    item_first = first[of_read] + split * shape.split
    item_stop = np.minimum(item_first + shape.split, stop[of_read])
    item_queries = np.minimum(num_queries[of_read] - group * per_item, per_item)
    columns = (
        pages[of_read],
        item_first,
        item_stop,
        queries[of_read] + group * per_item,
        item_queries,
        np.zeros_like(split),
    )
    return np.stack(columns, axis=1).astype(np.int32)


def _number_parts(own: Ints, shared: Ints) -> int:
    """Give each item its first part; how many parts there are."""
    at = 0
    for items in (own, shared):
        behind = at + np.cumsum(items[:, 4])
        items[:, 5] = behind - items[:, 4]
        at = int(behind[-1]) if len(behind) else at
    return at


def _part_lists(items: Ints, queries: Ints, tokens: Ints) -> tuple[Ints, Ints]:
    """Where each token's parts begin, and the parts by token, in the order of items."""
    count = items[:, 4]
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    token_of_part = queries[np.repeat(items[:, 3], count) + within]
    parts = np.argsort(token_of_part, kind="stable")
    # Tokens of a step's spans rise, and none is behind the last.
    first = np.append(np.searchsorted(token_of_part[parts], tokens), len(parts))
    return first.astype(np.int32), parts.astype(np.int32)


def _tiles(chunks: list[Span], tables: _Pages, shape: TileShape) -> Ints:
    tiles: list[tuple[int, int, int, int]] = []
    step = shape.queries_of(shape.chunk_rows)
    for span in chunks:
        pages, _, context_len = tables.add(span.ranges)
        first = context_len - span.query_len
        # The last first: they read most, and none of them should begin when all others have ended.
        for start in reversed(range(0, span.query_len, step)):
            num = min(step, span.query_len - start)
            tiles.append((pages, first + start, span.query_start + start, num))
    return np.array(tiles, dtype=np.int32).reshape(-1, TILE_COLUMNS)


def _rows_within(span: Span, window: int | None) -> int:
    """Rows that a chunk reads once, by whichever of its queries."""
    seen = span.context_len if window is None else window + span.query_len - 1
    return min(span.context_len, seen)
