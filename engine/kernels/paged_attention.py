"""Attention over paged KV rows: parts of a context by work items, and whole chunks of prompts.

A decode step is cut into items of a fixed number of rows, so that one long context fills a GPU and
its sums are taken in the same order in every batch (Flash-Decoding's split, Dao et al., 2023; a
fixed size as in the batch-invariant kernels of Thinking Machines, 2025). An item's queries are
those of one sequence, or of all readers of rows that are shared (Hydragen, Juravsky et al., 2024):
to the kernel it is the same thing. Each item leaves a part: what its queries found, and the
logarithm to base 2 of the sum of their weights; `merging.py` makes one of all parts of a query.
The softmax goes tile by tile as in FlashAttention (Dao et al., 2022).

Query heads that share a KV head are rows of one tile: row m of a tile is head m % group of token
m // group. Row p of a table is row p % page_size of page pages[p // page_size].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton.language as tl

from flowforge.engine.kernels.dialect import IS_INTERPRETED, Tensor, block_of, dot, jit, tanh

if TYPE_CHECKING:
    import torch

    from flowforge.engine.attention.interface import LayerAttention
    from flowforge.engine.kernels.merging import Parts

SPLIT = 256
"""Rows of an item: few enough that one sequence of some thousand tokens is work for a whole GPU."""

_LOG2_E = tl.constexpr(1.4426950408889634)
# Programs that take items in turns, for each KV head: a captured launch must fit any step.
_MOST_PROGRAMS = 512


@dataclass(frozen=True, slots=True)
class LayerRows:
    """One layer's KV rows.

    rows: [2, num_kv_heads, num_slots, head_dim], contiguous. scales: float32 [2, num_kv_heads,
    num_slots] of float8 rows.
    """

    rows: torch.Tensor
    scales: torch.Tensor | None
    page_size: int


@dataclass(frozen=True, slots=True)
class Items:
    """Work items, on the rows' device.

    items: int32 [capacity, 6]: where the item's page table begins in `pages`; its first row and the
    one behind its last, counted from the start of that page; where its queries begin in `queries`;
    how many they are; its first part. pages, queries: int32. count: int32 [1], items in use.
    tile_rows: rows of a tile of queries, a power of two of at least 16 that holds a group; an item
    has at most tile_rows // group queries.
    """

    items: torch.Tensor
    count: torch.Tensor
    pages: torch.Tensor
    queries: torch.Tensor
    tile_rows: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of chunks of prompts, on the rows' device.

    tiles: int32 [num_tiles, 4]: where the sequence's page table begins in `pages`; the position of
    the tile's first query; its row in q; the number of queries, at most tile_rows // group.
    tile_rows: as in `Items`.
    """

    tiles: torch.Tensor
    pages: torch.Tensor
    tile_rows: int


def attend_items(
    q: torch.Tensor, kv: LayerRows, work: Items, layer: LayerAttention, parts: Parts
) -> None:
    """Attend to all rows of each item; windows are the items' business.

    q: [num_tokens, num_heads, head_dim], heads side by side. parts: written.
    """
    num_items = len(work.items)
    if num_items == 0:
        return
    _items_kernel[(min(num_items, _MOST_PROGRAMS), kv.rows.shape[1])](
        q,
        *_places(kv),
        work.items,
        work.count,
        work.pages,
        work.queries,
        parts.found,
        parts.logs,
        q.stride(0),
        kv.rows.shape[2],
        layer.scale,
        layer.softcap or 0.0,
        **_options(q, kv, layer, work.tile_rows),
    )


def attend_chunks(
    q: torch.Tensor, kv: LayerRows, work: Tiles, layer: LayerAttention, out: torch.Tensor
) -> None:
    """Attend causally, over pages, for tiles of queries whose own rows are stored already.

    q: as in `attend_items`. out: [num_tokens, num_heads, head_dim], contiguous; the tiles' rows are
    written.
    """
    if len(work.tiles) == 0:
        return
    _chunks_kernel[(len(work.tiles), kv.rows.shape[1])](
        q,
        *_places(kv),
        work.tiles,
        work.pages,
        out,
        q.stride(0),
        kv.rows.shape[2],
        layer.scale,
        layer.softcap or 0.0,
        layer.window or 0,
        HAS_WINDOW=layer.window is not None,
        **_options(q, kv, layer, work.tile_rows),
    )


def _places(kv: LayerRows) -> tuple[torch.Tensor, ...]:
    """Keys, values and their scales; rows without scales stand for them, and are not read."""
    scales = kv.rows if kv.scales is None else kv.scales
    return kv.rows[0], kv.rows[1], scales[0], scales[1]


def _options(
    q: torch.Tensor, kv: LayerRows, layer: LayerAttention, tile_rows: int
) -> dict[str, object]:
    """What a kernel is compiled for."""
    num_kv_heads, head_dim = kv.rows.shape[1], q.shape[2]
    block_n, num_warps, num_stages = _block_of_rows(head_dim, q.itemsize, tile_rows)
    return {
        "GROUP": q.shape[1] // num_kv_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "PAGE": kv.page_size,
        "IS_SCALED": kv.scales is not None,
        "HAS_CAP": layer.softcap is not None,
        "BLOCK_M": tile_rows,
        "BLOCK_N": block_n,
        "BLOCK_D": block_of(head_dim),
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def _block_of_rows(head_dim: int, itemsize: int, tile_rows: int) -> tuple[int, int, int]:
    """KV rows of a tile, warps and stages: what fits a multiprocessor's memory twice."""
    if IS_INTERPRETED:
        return 16, 1, 1  # small tiles meet more borders
    row_bytes = block_of(head_dim) * itemsize
    block_n = 64 if row_bytes <= 256 else 32 if row_bytes <= 512 else 16
    # A tile of results, tile_rows by head_dim, is spread over the registers of all warps.
    num_warps = 8 if tile_rows >= 128 or row_bytes > 256 else 4
    return block_n, num_warps, 3 if row_bytes <= 256 else 2


@jit
def _items_kernel(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor,
    value_scales: Tensor,
    items: Tensor,
    count: Tensor,
    pages: Tensor,
    queries: Tensor,
    found: Tensor,
    logs: Tensor,
    q_stride: int,
    num_slots: int,
    scale: float,
    softcap: float,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    IS_SCALED: tl.constexpr,
    HAS_CAP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    kv_head = tl.program_id(1)
    of_head = kv_head.to(tl.int64) * num_slots
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + m % GROUP
    num_items = tl.load(count)
    for idx in range(tl.program_id(0), num_items, tl.num_programs(0)):
        item = items + idx * 6
        is_query = m // GROUP < tl.load(item + 4)
        token = tl.load(queries + tl.load(item + 3) + m // GROUP, mask=is_query, other=0)
        is_number = is_query[:, None] & (d < HEAD_DIM)[None, :]
        of_query = token.to(tl.int64)[:, None] * q_stride + (head * HEAD_DIM)[:, None] + d[None, :]
        total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        weight = tl.zeros([BLOCK_M], tl.float32)
        most = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total, weight, most = _visit(
            tl.load(q + of_query, mask=is_number, other=0.0),
            total,
            weight,
            most,
            m,
            m,
            keys + of_head * HEAD_DIM,
            values + of_head * HEAD_DIM,
            key_scales + of_head,
            value_scales + of_head,
            pages + tl.load(item),
            tl.load(item + 1),
            tl.load(item + 2),
            scale,
            softcap,
            HEAD_DIM,
            PAGE,
            IS_SCALED,
            HAS_CAP,
            False,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
        )
        part = (tl.load(item + 5) + m // GROUP).to(tl.int64) * (NUM_KV_HEADS * GROUP) + head
        has_weight = weight > 0
        weight = tl.where(has_weight, weight, 1.0)
        at = part[:, None] * HEAD_DIM + d[None, :]
        tl.store(found + at, total / weight[:, None], mask=is_number)
        log = tl.where(has_weight, most + tl.log2(weight), float("-inf"))
        tl.store(logs + part, log, mask=is_query)


@jit
def _chunks_kernel(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor,
    value_scales: Tensor,
    tiles: Tensor,
    pages: Tensor,
    out: Tensor,
    q_stride: int,
    num_slots: int,
    scale: float,
    softcap: float,
    window: int,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    IS_SCALED: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    kv_head = tl.program_id(1)
    of_head = kv_head.to(tl.int64) * num_slots
    tile = tiles + tl.program_id(0) * 4
    first_position = tl.load(tile + 1)
    num_queries = tl.load(tile + 3)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    is_query = m // GROUP < num_queries
    is_number = is_query[:, None] & (d < HEAD_DIM)[None, :]
    token = (tl.load(tile + 2) + m // GROUP).to(tl.int64)
    of_head_row = (kv_head * GROUP + m % GROUP) * HEAD_DIM
    rows = tl.load(
        q + token[:, None] * q_stride + of_head_row[:, None] + d[None, :], mask=is_number, other=0.0
    )
    high = first_position + m // GROUP
    low = high - high
    start = 0
    # All queries see the rows before the first one's own; with a window none can be sure.
    border = (first_position + 1) // BLOCK_N * BLOCK_N
    if HAS_WINDOW:
        low = tl.maximum(high - window + 1, 0)
        start = tl.maximum(first_position - window + 1, 0)
        border = start
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    most = tl.full([BLOCK_M], float("-inf"), tl.float32)
    if not HAS_WINDOW:
        total, weight, most = _visit(
            rows,
            total,
            weight,
            most,
            low,
            high,
            keys + of_head * HEAD_DIM,
            values + of_head * HEAD_DIM,
            key_scales + of_head,
            value_scales + of_head,
            pages + tl.load(tile),
            start,
            border,
            scale,
            softcap,
            HEAD_DIM,
            PAGE,
            IS_SCALED,
            HAS_CAP,
            False,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
        )
    total, weight, most = _visit(
        rows,
        total,
        weight,
        most,
        low,
        high,
        keys + of_head * HEAD_DIM,
        values + of_head * HEAD_DIM,
        key_scales + of_head,
        value_scales + of_head,
        pages + tl.load(tile),
        border,
        first_position + num_queries,
        scale,
        softcap,
        HEAD_DIM,
        PAGE,
        IS_SCALED,
        HAS_CAP,
        True,
        BLOCK_M,
        BLOCK_N,
        BLOCK_D,
    )
    result = total / tl.where(is_query, weight, 1.0)[:, None]
    at = token[:, None] * (NUM_KV_HEADS * GROUP * HEAD_DIM) + of_head_row[:, None] + d[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=is_number)


@jit
def _visit(
    q: Tensor,
    total: Tensor,
    weight: Tensor,
    most: Tensor,
    low: Tensor,
    high: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor,
    value_scales: Tensor,
    pages: Tensor,
    start: Tensor,
    stop: Tensor,
    scale: float,
    softcap: float,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    IS_SCALED: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_MASKED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor]:
    """A tile of queries over the rows from `start` to `stop` of a table, added to what it has.

    low, high: the first and last row that each query sees, if IS_MASKED. total: weighted sums of V;
    weight: sums of weights; most: largest scores, to base 2.
    """
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    for first in range(start, stop, BLOCK_N):
        row = first + n
        is_row = row < stop
        page = tl.load(pages + row // PAGE, mask=is_row, other=0)
        slot = page.to(tl.int64) * PAGE + row % PAGE
        is_number = is_row[:, None] & (d < HEAD_DIM)[None, :]
        at = slot[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(keys + at, mask=is_number, other=0.0).to(q.dtype)
        scores = dot(q, tl.trans(k), tl.zeros([BLOCK_M, BLOCK_N], tl.float32))
        if IS_SCALED:
            scores *= tl.load(key_scales + slot, mask=is_row, other=0.0)[None, :]
        if HAS_CAP:
            scores = softcap * tanh(scores * (scale / softcap)) * _LOG2_E
        else:
            scores *= scale * _LOG2_E
        is_seen = is_row[None, :]
        if IS_MASKED:
            is_seen = is_seen & (row[None, :] >= low[:, None]) & (row[None, :] <= high[:, None])
        scores = tl.where(is_seen, scores, float("-inf"))
        highest = tl.maximum(most, tl.max(scores, axis=1))
        # A query that has seen nothing yet: not -inf - -inf.
        base = tl.where(highest == float("-inf"), 0.0, highest)
        decay = tl.exp2(most - base)
        weights = tl.exp2(scores - base[:, None])
        weight = weight * decay + tl.sum(weights, axis=1)
        v = tl.load(values + at, mask=is_number, other=0.0)
        if IS_SCALED:
            wide = v.to(tl.float32) * tl.load(value_scales + slot, mask=is_row, other=0.0)[:, None]
            v = wide.to(q.dtype)
        total = dot(weights.to(q.dtype), v.to(q.dtype), total * decay[:, None])
        most = highest
    return total, weight, most
