"""Paged attention by the Triton kernels: the GPU's path, behind the same door as the CPU's.

Single queries are cut into work items whose parts are merged; rows that several of them have in
common are read once for all. Chunks of prompts attend tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from flowforge.engine.attention.interface import with_whole_rows
from flowforge.engine.attention.kernel_tables import (
    ITEM_COLUMNS,
    TILE_COLUMNS,
    TileShape,
    layout_of,
    step_tables,
)
from flowforge.engine.attention.reads import NEVER_SPLIT, SplitPolicy
from flowforge.engine.kernels.dialect import IS_INTERPRETED, block_of
from flowforge.engine.kernels.merging import PartLists, Parts, merge_parts
from flowforge.engine.kernels.paged_attention import (
    SPLIT,
    Items,
    LayerRows,
    Tiles,
    attend_chunks,
    attend_items,
)
from flowforge.engine.kernels.store import store_rows

if TYPE_CHECKING:
    from flowforge.engine.attention.interface import LayerAttention
    from flowforge.engine.attention.kernel_tables import StepTables, TableLayout
    from flowforge.engine.attention.reads import Segment, Span
    from flowforge.engine.config import SharedAttention
    from flowforge.engine.kv.store import KvStore

# A launch and a merge more take as long as reading so much again, at some terabytes a second. Not
# measured: benchmarks/gpu.py is to say.
_MIN_SAVED_BYTES = 12 << 20


def kernel_policy(choice: SharedAttention, row_bytes: int) -> SplitPolicy:
    """What an operator's choice means on a GPU, for rows of so many bytes; see `split_policy`."""
    if choice == "off":
        return NEVER_SPLIT
    return SplitPolicy(1 if choice == "on" else -(-_MIN_SAVED_BYTES // row_bytes), None)


def tile_shape(
    num_heads: int, num_kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype
) -> TileShape:
    """How work is cut for queries of this shape and dtype."""
    group = num_heads // num_kv_heads
    least = block_of(group)
    if IS_INTERPRETED:
        # Small, so that small contexts meet every border.
        return TileShape(group, least, least, least, 2 * page_size, page_size)
    if dtype.itemsize > 2:
        # There are no units for exact products of float32, and larger tiles do not fit registers.
        shared = chunk = least
    else:
        shared, chunk = max(least, 64), max(least, 64 if head_dim > 128 else 128)
    return TileShape(group, least, shared, chunk, max(SPLIT, page_size), page_size)


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """The tables of a step on the device, as views of one array.

    buffer: int32 [layout.num_values]. parts: room for what items find.
    """

    own: Items
    shared: Items
    lists: PartLists
    tiles: Tiles
    parts: Parts

    @classmethod
    def over(
        cls, buffer: torch.Tensor, layout: TableLayout, shape: TileShape, parts: Parts
    ) -> DeviceTables:
        """Views of an array in which a layout's tables lie or will lie."""

        def table(name: str) -> torch.Tensor:
            return buffer.narrow(0, layout.offsets[name], layout.sizes[name])

        counts, pages, queries = table("counts"), table("pages"), table("queries")
        own, shared = (table(name).view(-1, ITEM_COLUMNS) for name in ("own", "shared"))
        return cls(
            Items(own, counts[0:1], pages, queries, shape.own_rows),
            Items(shared, counts[1:2], pages, queries, shape.shared_rows),
            PartLists(table("merged"), table("merged_first"), table("merged_parts"), counts[2:3]),
            Tiles(table("tiles").view(-1, TILE_COLUMNS), pages, shape.chunk_rows),
            parts,
        )


def new_parts(num_parts: int, num_heads: int, head_dim: int, device: torch.device) -> Parts:
    """Room for so many parts, not filled."""
    found = torch.empty((num_parts, num_heads, head_dim), dtype=torch.float32, device=device)
    return Parts(found, torch.empty((num_parts, num_heads), dtype=torch.float32, device=device))


class KernelAttention:
    """One step's attention over the KV tensors, by kernels; satisfies `AttentionStep`.

    rows: [num_layers, 2, num_kv_heads, num_slots, head_dim], contiguous, written in place. slots:
    integers [num_tokens] on their device. scales: float32 [num_layers, 2, num_kv_heads, num_slots]
    of float8 rows. shape: as `tile_shape` says. The others as `PagedAttention` has them. Tables are
    made and copied once for each window of the layers.
    """

    def __init__(
        self,
        rows: torch.Tensor,
        slots: torch.Tensor,
        spans: tuple[Span, ...],
        segments: tuple[Segment, ...] = (),
        policy: SplitPolicy = NEVER_SPLIT,
        *,
        shape: TileShape,
        scales: torch.Tensor | None = None,
    ) -> None:
        self._rows = rows
        self._slots = slots
        self._spans = spans
        self._segments = segments
        self._policy = policy
        self._shape = shape
        self._scales = scales
        self._longest = max(span.context_len for span in spans)
        self._host: dict[int | None, StepTables] = {}  # by window
        self._device: dict[int | None, DeviceTables] = {}

    @property
    def num_rows_read(self) -> int:
        """KV rows that are read in one layer without a window."""
        return self._host_tables(None).num_rows_read

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: LayerAttention,
    ) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        layer_rows = self._rows[layer_idx]
        scales = None if self._scales is None else self._scales[layer_idx]
        store_rows(with_whole_rows(k), with_whole_rows(v), layer_rows, self._slots, scales)
        q = with_whole_rows(q)
        kv = LayerRows(layer_rows, scales, self._shape.page_size)
        return attend(q, kv, self._tables(layer.window, q), layer)

    def _tables(self, window: int | None, q: torch.Tensor) -> DeviceTables:
        if window is not None and window >= self._longest:
            window = None
        tables = self._device.get(window)
        if tables is None:
            host = self._host_tables(window)
            layout = layout_of(host)
            packed = np.zeros(layout.num_values, dtype=np.int32)
            layout.pack(host, packed)
            buffer = torch.from_numpy(packed).to(q.device)
            parts = new_parts(host.num_parts, q.shape[1], q.shape[2], q.device)
            tables = self._device[window] = DeviceTables.over(buffer, layout, self._shape, parts)
        return tables

    def _host_tables(self, window: int | None) -> StepTables:
        tables = self._host.get(window)
        if tables is None:
            tables = self._host[window] = step_tables(
                self._spans, self._segments, self._policy, self._shape, window
            )
        return tables


@dataclass(frozen=True, slots=True)
class KernelBackend:
    """By the Triton kernels; satisfies `AttentionBackend`. See `KernelAttention`."""

    rows: torch.Tensor
    policy: SplitPolicy
    shape: TileShape
    scales: torch.Tensor | None = None

    def step(
        self, slots: torch.Tensor, spans: tuple[Span, ...], segments: tuple[Segment, ...]
    ) -> KernelAttention:
        """See `AttentionBackend.step`."""
        return KernelAttention(
            self.rows, slots, spans, segments, self.policy, shape=self.shape, scales=self.scales
        )


def kernel_backend(
    store: KvStore, num_heads: int, shared_attention: SharedAttention = "auto"
) -> KernelBackend:
    """The backend for a store's rows and queries of so many heads, in the dtype of its K and V."""
    kind = store.kind
    shape = tile_shape(num_heads, kind.num_kv_heads, kind.head_dim, store.page_size, kind.dtype)
    policy = kernel_policy(shared_attention, kind.row_bytes)
    return KernelBackend(store.rows, policy, shape, store.scales)


def attend(
    q: torch.Tensor, kv: LayerRows, tables: DeviceTables, layer: LayerAttention
) -> torch.Tensor:
    """Attention of a step whose rows are stored: [num_tokens, num_heads, head_dim].

    Copies nothing to or from the device, so a graph may capture it.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    attend_items(q, kv, tables.own, layer, tables.parts)
    attend_items(q, kv, tables.shared, layer, tables.parts)
    merge_parts(tables.parts, tables.lists, out)
    attend_chunks(q, kv, tables.tiles, layer, out)
    return out
