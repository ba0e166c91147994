"""Attention of decode steps from tables at fixed places: what a captured graph can repeat.

A graph is a list of launches over fixed addresses. So a step's tables are written to the same
places each time, as many as there can be for its number of queries; kernels read how many count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.attention.interface import with_whole_rows
from flowforge.engine.attention.kernel_attention import DeviceTables, attend, new_parts
from flowforge.engine.attention.kernel_tables import decode_layout, step_tables
from flowforge.engine.kernels.paged_attention import LayerRows
from flowforge.engine.kernels.store import store_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    import torch

    from flowforge.engine.attention.interface import LayerAttention
    from flowforge.engine.attention.kernel_attention import KernelBackend
    from flowforge.engine.attention.reads import Segment, Span


class GraphTables:
    """Where the tables of steps of up to `num_queries` single queries lie, for each window.

    most_context: tokens of one context at most. windows: those of the model's layers.
    """

    def __init__(
        self,
        backend: KernelBackend,
        num_queries: int,
        most_context: int,
        windows: Sequence[int | None],
    ) -> None:
        self._backend = backend
        num_pages = -(-most_context // backend.shape.page_size) + 1
        self._layout, self._num_parts = decode_layout(
            backend.shape, num_queries=num_queries, num_pages=num_pages, most_context=most_context
        )
        self._windows = tuple(windows)

    @property
    def num_values(self) -> int:
        """Numbers of all tables together."""
        return len(self._windows) * self._layout.num_values

    def write(
        self, spans: tuple[Span, ...], segments: tuple[Segment, ...], into: npt.NDArray[np.int32]
    ) -> int | None:
        """Write a step's tables; how many KV rows it reads, or None where they have no room.

        into: [num_values]. Of a step without room nothing that was written may be used.
        """
        num_rows_read, size = 0, self._layout.num_values
        for place, window in enumerate(self._windows):
            backend = self._backend
            tables = step_tables(spans, segments, backend.policy, backend.shape, window)
            if not self._layout.holds(tables) or tables.num_parts > self._num_parts:
                return None
            self._layout.pack(tables, into[place * size : (place + 1) * size])
            num_rows_read = max(num_rows_read, tables.num_rows_read)
        return num_rows_read

    def attention(
        self, slots: torch.Tensor, buffer: torch.Tensor, num_heads: int
    ) -> GraphAttention:
        """The attention that reads its tables from a buffer: int32 [num_values] on the device.

        slots: integers [rows]; negative where a row is a dummy.
        """
        rows, size = self._backend.rows, self._layout.num_values
        # Windows take turns: each layer has merged its parts before the next one begins.
        parts = new_parts(self._num_parts, num_heads, rows.shape[-1], rows.device)
        tables = {
            window: DeviceTables.over(
                buffer.narrow(0, place * size, size), self._layout, self._backend.shape, parts
            )
            for place, window in enumerate(self._windows)
        }
        return GraphAttention(self._backend, slots, tables)


class GraphAttention:
    """An `AttentionStep` whose every address is fixed."""

    def __init__(
        self,
        backend: KernelBackend,
        slots: torch.Tensor,
        tables: dict[int | None, DeviceTables],
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._tables = tables

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: LayerAttention,
    ) -> torch.Tensor:
        """See `AttentionStep.attend`. Rows of dummies are not written, and hold anything after."""
        backend = self._backend
        layer_rows = backend.rows[layer_idx]
        scales = None if backend.scales is None else backend.scales[layer_idx]
        store_rows(with_whole_rows(k), with_whole_rows(v), layer_rows, self._slots, scales)
        kv = LayerRows(layer_rows, scales, backend.shape.page_size)
        return attend(with_whole_rows(q), kv, self._tables[layer.window], layer)
