"""Paged attention by the compiled kernel: one call a layer, for any pages, windows and readers.

A query's sums are taken in one order, tile by tile from the start of its text, and never depend on
what else is in the step, where rows lie or who shares them; so sharing here costs no merging, and
changes no bit.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from flowforge.engine.attention.interface import LayerAttention, with_whole_rows
from flowforge.engine.attention.reads import Span
from flowforge.engine.attention.reference import dense_attention
from flowforge.engine.native.attention_library import (
    HEAD_DIM_MULTIPLE,
    TILE,
    AttentionLibrary,
    LayerCall,
)
from flowforge.engine.native.compilation import load_library

if TYPE_CHECKING:
    import numpy.typing as npt

    from flowforge.engine.attention.reads import Segment


_logger = logging.getLogger(__name__)

_MANY_TOKENS = 64


@cache
def find_attention_library() -> AttentionLibrary | None:
    """The kernel, compiled now where it is not kept yet; None where that cannot be.

    Why not is logged once.
    """
    library = load_library(AttentionLibrary)
    if library is not None and not _computes_right(library):
        _logger.warning("the compiled kernel %s computes wrong results: not used", library.path)
        return None
    return library


def can_compute(rows: torch.Tensor) -> bool:
    """Whether the kernel knows KV rows of this kind."""
    return (
        rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and rows.shape[-1] % HEAD_DIM_MULTIPLE == 0
    )


def runs_of(
    spans: tuple[Span, ...], segments: tuple[Segment, ...]
) -> list[tuple[int, int, tuple[int, ...]]]:
    """(start, stop, readers) in an order in which every span's positions rise without a gap.

    Starts are whole tiles: what is shared of a tile in part, each reader reads by itself.
    """
    runs: list[tuple[int, int, tuple[int, ...]]] = []
    shared_stops = [0] * len(spans)
    for segment in sorted(segments, key=lambda one: one.start):
        start, stop = segment.start // TILE * TILE, segment.stop // TILE * TILE
        if start < stop:
            runs.append((start, stop, segment.readers))
            for reader in segment.readers:
                shared_stops[reader] = stop
    for idx, (span, stop) in enumerate(zip(spans, shared_stops, strict=True)):
        runs.append((stop, span.context_len, (idx,)))
    return runs


class CompiledAttention:
    """One step's attention over the KV tensors, on a CPU; satisfies `AttentionStep`.

    rows: float32 [num_layers, 2, num_kv_heads, num_slots, head_dim], written in place.
    slots: int64 [num_tokens], the row of each token of the step. spans: of adjacent queries, in
    order. segments: rows to read once for several spans; each begins where another of all its
    readers ends, or at 0. call: of the step, without what differs between layers.
    """

    def __init__(
        self,
        library: AttentionLibrary,
        rows: torch.Tensor,
        slots: torch.Tensor,
        spans: tuple[Span, ...],
        segments: tuple[Segment, ...] = (),
    ) -> None:
        self._library = library
        self.rows = rows
        self._slots = slots
        _, _, num_kv_heads, num_slots, head_dim = rows.shape
        runs = runs_of(spans, segments)
        self.num_rows_read = sum(stop - start for start, stop, _ in runs)
        self._tables = _tables(spans, runs)
        num_threads = library.num_threads
        # Enough parts that threads end together, and not so many that each reads the prefix again.
        num_parts = 1 if num_kv_heads % num_threads == 0 else min(num_threads, len(slots))
        if num_parts > 1 and len(slots) >= _MANY_TOKENS:
            num_parts *= 4  # later tokens of a prompt see more than earlier ones
        self.call = LayerCall(
            slots=slots.data_ptr(),
            **{name: table.ctypes.data for name, table in self._tables.items()},
            num_tokens=len(slots),
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            num_slots=num_slots,
            num_spans=len(spans),
            num_runs=len(runs),
            num_parts=num_parts,
            num_threads=num_threads,
        )

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: LayerAttention,
    ) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        num_tokens, num_heads, head_dim = q.shape
        q, k, v = with_whole_rows(q), with_whole_rows(k), with_whole_rows(v)
        out = torch.empty((num_tokens, num_heads, head_dim), dtype=torch.float32)
        sums = torch.empty((num_tokens, num_heads, 2), dtype=torch.float32)
        call = self.call
        call.keys, call.values = (self.rows[layer_idx, side].data_ptr() for side in (0, 1))
        call.q, call.k, call.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        call.out, call.sums = out.data_ptr(), sums.data_ptr()
        call.q_stride, call.k_stride, call.v_stride = q.stride(0), k.stride(0), v.stride(0)
        call.num_heads = num_heads
        call.window = layer.window or 0
        call.scale, call.softcap = layer.scale, layer.softcap or 0.0
        self._library.attend(call)
        return out


def _tables(
    spans: tuple[Span, ...], runs: list[tuple[int, int, tuple[int, ...]]]
) -> dict[str, npt.NDArray[np.int64]]:
    """The arrays of `struct span`, `range`, `run` and of readers."""
    ranges: list[tuple[int, int]] = []
    of_spans: list[tuple[int, int, int, int]] = []
    for span in spans:
        of_spans.append((span.query_start, span.query_len, span.context_len, len(ranges)))
        ranges += span.ranges
    readers: list[int] = []
    of_runs: list[tuple[int, int, int, int]] = []
    for start, stop, of_run in runs:
        of_runs.append((start, stop, len(readers), len(of_run)))
        readers += of_run
    lists = {"spans": of_spans, "ranges": ranges, "runs": of_runs, "readers": readers}
    return {name: np.array(values, dtype=np.int64) for name, values in lists.items()}


def _computes_right(library: AttentionLibrary) -> bool:
    """On one small context; everything else is the tests' to check."""
    generator = torch.Generator().manual_seed(3)
    length, layer = TILE + 5, LayerAttention(0.3)
    with torch.inference_mode():
        q = torch.randn((length, 6, 16), generator=generator)
        k, v = torch.randn((2, length, 2, 16), generator=generator)
        rows = torch.zeros((1, 2, 2, length, 16))
        span = Span(0, length, ((0, length),))
        step = CompiledAttention(library, rows, torch.arange(length), (span,))
        found = step.attend(0, q, k, v, layer)
        return torch.allclose(found, dense_attention(q, k, v, layer), rtol=1e-4, atol=1e-4)
