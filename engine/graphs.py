"""Decode steps as graphs: captured once for some numbers of rows, then repeated with one launch.

A decode step of a small model is hundreds of launches that take longer to ask for than to run. A
graph is captured for each of a few sizes; a step of fewer rows fills up with dummies, which write
no KV row and whose results nobody reads. All inputs of a step are one array: one copy to the
device.

Sources: CUDA graphs by size with padding, as vLLM and SGLang have them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch

from flowforge.engine.forward import fed_ids
from flowforge.engine.memory import in_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.attention.graph_attention import GraphAttention, GraphTables
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.step_batch import StepBatch

_logger = logging.getLogger(__name__)

_SIZES = (1, 2, 4, 8)
_STEP = 16
_MOST_ROWS = 256
_NUM_INPUTS = 4  # token ids, positions, slots, feeds

Replay: TypeAlias = Callable[[], None]
"""Repeats what was captured, with what is in its inputs now; enqueued, not waited for."""


class Capture(Protocol):
    """Records what a function does on the device."""

    def __call__(self, compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
        """The function's result, whose place stays the same, and what computes it again."""
        ...


def graph_sizes(max_running: int) -> tuple[int, ...]:
    """The numbers of rows to capture: 1, 2, 4, 8, then by doubling up to 64, then by steps.

    The last one holds `max_running` rows, if that is not above 256.
    """
    most = min(max_running, _MOST_ROWS)
    sizes = [size for size in _SIZES if size < most]
    size = _STEP
    while size < most:
        sizes.append(size)
        size += max(_STEP, size if size < 64 else 32)
    return (*sizes, most)


def size_for(num_rows: int, sizes: tuple[int, ...]) -> int | None:
    """The least size that holds so many rows; None where none does."""
    return next((size for size in sizes if size >= num_rows), None)


class CudaCapture:
    """By CUDA graphs that share one pool of memory: only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
        """See `Capture`."""
        # Once outside: kernels are compiled and libraries set up, which no graph may record.
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            compute()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            found = compute()
        return found, graph.replay


@dataclass(frozen=True, slots=True)
class _Captured:
    """A step of one size. hidden: [size, hidden_size], written anew by each replay."""

    tables: GraphTables
    host: torch.Tensor  # int32, pinned
    inputs: torch.Tensor  # int32, on the device
    hidden: torch.Tensor
    replay: Replay
    copied: torch.cuda.Event | None  # the host's numbers may be overwritten behind it


class DecodeGraphs:
    """Owns the graphs of one decoder and their inputs and results. Under inference mode.

    make_tables: for a number of rows. drawn: int64, where the last step's tokens lie, for batches
    with `feeds`; a captured step reads them there. Captures all sizes now, the largest first,
    because smaller ones then find room in its memory; progress hears how many are done, of how
    many.
    """

    def __init__(
        self,
        decoder: Decoder,
        make_tables: Callable[[int], GraphTables],
        sizes: tuple[int, ...],
        capture: Capture,
        progress: Callable[[int, int], None] = lambda done, total: None,
        *,
        drawn: torch.Tensor | None = None,
    ) -> None:
        self._decoder = decoder
        self._drawn = drawn
        self._sizes = sizes
        self._device = decoder.device
        self._num_rows_read = 0
        self._captured: dict[int, _Captured] = {}
        started_at, free = time.perf_counter(), self._free_bytes()
        for num_done, size in enumerate(sorted(sizes, reverse=True)):
            progress(num_done, len(sizes))
            self._captured[size] = self._capture(size, make_tables(size), capture)
        progress(len(sizes), len(sizes))
        self.num_bytes = max(0, free - self._free_bytes())
        _logger.info(
            "%d graphs of up to %d rows captured in %.1f s, %s",
            len(sizes),
            max(sizes),
            time.perf_counter() - started_at,
            in_bytes(self.num_bytes),
        )

    @property
    def num_rows_read(self) -> int:
        """KV rows that attention has read in one layer without a window."""
        return self._num_rows_read

    def hidden(self, batch: StepBatch) -> torch.Tensor | None:
        """As `StepForward.hidden`; None for a step that no graph can do: nothing has run then.

        What is returned is good until the next call.
        """
        assert self._drawn is not None or not batch.feeds, "a batch is fed from what was drawn"
        size = size_for(len(batch.token_ids), self._sizes)
        if size is None or not batch.is_decode:
            return None
        one = self._captured[size]
        if one.copied is not None:
            one.copied.synchronize()
        host = one.host.numpy()
        inputs = host[: _NUM_INPUTS * size].reshape(_NUM_INPUTS, size)
        num_rows = one.tables.write(batch.spans, batch.segments, host[_NUM_INPUTS * size :])
        if num_rows is None:
            return None
        _fill(inputs, batch)
        one.inputs.copy_(one.host, non_blocking=True)
        if one.copied is not None:
            one.copied.record()
        one.replay()
        self._num_rows_read += num_rows
        return one.hidden[: len(batch.token_ids)]

    def _capture(self, size: int, tables: GraphTables, capture: Capture) -> _Captured:
        num_values = _NUM_INPUTS * size + tables.num_values
        host = torch.zeros(num_values, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        inputs = torch.zeros(num_values, dtype=torch.int32, device=self._device)
        token_ids, positions, slots, feeds = inputs[: _NUM_INPUTS * size].view(_NUM_INPUTS, size)
        slots.fill_(-1)
        feeds.fill_(-1)
        drawn = self._drawn
        attention: GraphAttention = tables.attention(
            slots, inputs[_NUM_INPUTS * size :], self._decoder.config.num_heads
        )

        def compute() -> torch.Tensor:
            ids = token_ids if drawn is None else fed_ids(token_ids, feeds, drawn)
            return self._decoder.forward(ids, positions, attention)

        hidden, replay = capture(compute)
        copied = torch.cuda.Event() if self._device.type == "cuda" else None
        return _Captured(tables, host, inputs, hidden, replay, copied)

    def _free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0] if self._device.type == "cuda" else 0


def _fill(inputs: npt.NDArray[np.int32], batch: StepBatch) -> None:
    """Token ids, positions, slots, feeds; behind them dummies, which write no row."""
    num_rows = len(batch.token_ids)
    for row, values in enumerate((batch.token_ids, batch.positions, batch.slots)):
        inputs[row, :num_rows] = values
    inputs[3, :num_rows] = batch.feeds or -1
    inputs[:2, num_rows:] = 0
    inputs[2:, num_rows:] = -1
