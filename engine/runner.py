"""Carries out step plans on the model: row copies, one forward pass, logits where wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from flowforge.engine.attention.compiled import CompiledAttention, can_compute
from flowforge.engine.attention.paged import PagedAttention
from flowforge.engine.attention.reads import Segment, Span, split_policy
from flowforge.engine.model_interface import ChunkLogits
from flowforge.engine.sampling import logprobs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from flowforge.engine.attention.reads import Ranges
    from flowforge.engine.config import SharedAttention
    from flowforge.engine.kv.audit import KvAudit
    from flowforge.engine.kv.path import KvPath
    from flowforge.engine.kv.pool import PageId
    from flowforge.engine.kv.store import KvStore
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.native.attention_library import AttentionLibrary
    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.engine.scheduler import Chunk, StepPlan

# Rows of one LM head call: wide enough to be efficient, narrow enough that 49,152 fp32 columns of
# logits stay in the megabytes.
_LM_HEAD_ROWS = 32


class ModelRunner:
    """Owns the step's tensors; the decoder and the KV store are borrowed.

    audit: checks every row that is read, for debugging; is_free: of the cache that it watches.
    shared_attention: as in `EngineConfig`. kernel: attention by it, where it can compute the rows.
    """

    def __init__(
        self,
        decoder: Decoder,
        store: KvStore,
        audit: KvAudit | None = None,
        is_free: Callable[[PageId], bool] = lambda _: False,
        shared_attention: SharedAttention = "auto",
        kernel: AttentionLibrary | None = None,
    ) -> None:
        self._decoder = decoder
        self._store = store
        self._audit = audit
        self._is_free = is_free
        self._device = store.rows.device
        self._shared_attention: SharedAttention = shared_attention
        self._policy = split_policy(shared_attention, store.row_bytes)
        self._kernel = kernel if can_compute(store.rows) else None
        self._num_rows_read = 0

    @property
    def num_rows_read(self) -> int:
        """KV rows that attention has read in one layer without a window."""
        return self._num_rows_read

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[ChunkLogits]:
        """Run a plan: what the model says about each chunk, in the plan's order.

        Returns when the rows are written. Rows are read and written through the paths as planned.
        """
        self._store.copy_rows(plan.copies)
        if self._audit is not None:
            self._audit.copied(plan.copies, self._is_free)
        if not plan.chunks:
            return []
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        for chunk in plan.chunks:
            spans.append(_span(chunk, len(token_ids), self._store.page_size))
            token_ids += chunk.sequence.tokens[chunk.start : chunk.stop]
            positions += range(chunk.start, chunk.stop)
            slots += _slots(spans[-1], chunk)
            if self._audit is not None:
                _check_rows(self._audit, spans[-1], chunk)
        attention = self._attention(plan, self._tensor(slots), tuple(spans))
        self._num_rows_read += attention.num_rows_read
        hidden = self._decoder.forward(self._tensor(token_ids), self._tensor(positions), attention)
        last = self._last_logits(plan, spans, hidden)
        return [
            ChunkLogits(next(last) if chunk.is_last else None, self._score(chunk, span, hidden))
            for chunk, span in zip(plan.chunks, spans, strict=True)
        ]

    def _attention(
        self, plan: StepPlan, slots: torch.Tensor, spans: tuple[Span, ...]
    ) -> PagedAttention | CompiledAttention:
        rows = self._store.rows
        segments = _segments(plan, self._store.page_size)
        if self._kernel is None:
            return PagedAttention(rows, slots, spans, segments, self._policy)
        # The kernel merges nothing, so sharing always pays.
        shared = () if self._shared_attention == "off" else segments
        return CompiledAttention(self._kernel, rows, slots, spans, shared)

    def _last_logits(
        self, plan: StepPlan, spans: list[Span], hidden: torch.Tensor
    ) -> Iterator[npt.NDArray[np.float32]]:
        """One row for each chunk that is its sequence's last, those of all in few LM head calls."""
        rows = [
            span.query_start + span.query_len - 1
            for chunk, span in zip(plan.chunks, spans, strict=True)
            if chunk.is_last
        ]
        return self._logits(hidden, rows)

    def _score(self, chunk: Chunk, span: Span, hidden: torch.Tensor) -> tuple[TokenLogprobs, ...]:
        positions = chunk.scored_rows
        if not positions:
            return ()
        generation = chunk.sequence.generation
        assert generation is not None and generation.scoring is not None, "rows are scored for it"
        num_top = generation.scoring.num_top
        rows = [span.query_start + position - chunk.start for position in positions]
        tokens = chunk.sequence.tokens
        return tuple(
            logprobs_of(logits, tokens[position + 1], num_top)
            for position, logits in zip(positions, self._logits(hidden, rows), strict=True)
        )

    def _logits(self, hidden: torch.Tensor, rows: list[int]) -> Iterator[npt.NDArray[np.float32]]:
        for start in range(0, len(rows), _LM_HEAD_ROWS):
            picked = hidden[self._tensor(rows[start : start + _LM_HEAD_ROWS])]
            for row in self._decoder.logits(picked).cpu().numpy():
                # A copy: a row that is kept must not keep the whole matrix alive.
                yield row.copy()

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _span(chunk: Chunk, query_start: int, page_size: int) -> Span:
    path = chunk.sequence.path
    assert path is not None, "a planned sequence has a path"
    return Span(query_start, chunk.stop - chunk.start, _ranges(path, chunk.stop, page_size))


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


def _check_rows(audit: KvAudit, span: Span, chunk: Chunk) -> None:
    slots = np.concatenate([np.arange(start, start + length) for start, length in span.ranges])
    sequence = chunk.sequence
    tokens = sequence.tokens[: chunk.stop]
    audit.read_and_written(sequence.namespace, tokens, slots, chunk.start)


def _slots(span: Span, chunk: Chunk) -> list[int]:
    """The rows that the chunk's own tokens are written to: the end of its context."""
    slots: list[int] = []
    skip = chunk.start
    for start, length in span.ranges:
        slots += range(start + min(skip, length), start + length)
        skip = max(0, skip - length)
    return slots
