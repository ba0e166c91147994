"""Carries out step plans on the model: row copies, one forward pass, logits where wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from flowforge.engine.model_interface import ChunkLogits
from flowforge.engine.sampling import logprobs_of
from flowforge.engine.step_batch import step_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from flowforge.engine.attention.reads import Span
    from flowforge.engine.forward import StepForward
    from flowforge.engine.kv.audit import KvAudit
    from flowforge.engine.kv.pool import PageId
    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.engine.scheduler import Chunk, StepPlan
    from flowforge.engine.step_batch import StepBatch


class ModelRunner:
    """Turns plans into batches, and what the forward pass says into what the core asks for.

    audit: checks every row that is read, for debugging; is_free: of the cache that it watches.
    """

    def __init__(
        self,
        forward: StepForward,
        audit: KvAudit | None = None,
        is_free: Callable[[PageId], bool] = lambda _: False,
    ) -> None:
        self._forward = forward
        self._audit = audit
        self._is_free = is_free

    @property
    def num_rows_read(self) -> int:
        """See `StepForward.num_rows_read`."""
        return self._forward.num_rows_read

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[ChunkLogits]:
        """Run a plan: what the model says about each chunk, in the plan's order.

        Returns when the rows are written. Rows are read and written through the paths as planned.
        """
        batch = step_batch(plan, self._forward.page_size)
        self._forward.move(batch)
        if self._audit is not None:
            self._check(self._audit, plan, batch)
        if not plan.chunks:
            return []
        hidden = self._forward.hidden(batch)
        rows = self._logits(hidden, batch)
        behind = [
            [next(rows) for _ in range(1 + len(chunk.drafted))] if chunk.is_last else []
            for chunk in plan.chunks
        ]
        return [
            ChunkLogits(tuple(of_chunk), _score(chunk, rows))
            for chunk, of_chunk in zip(plan.chunks, behind, strict=True)
        ]

    def _logits(self, hidden: torch.Tensor, batch: StepBatch) -> Iterator[npt.NDArray[np.float32]]:
        """One row after the other, a call of the LM head for each group when it is reached."""
        for group in batch.logit_rows:
            for row in self._forward.logits(hidden, group).cpu().numpy():
                # A copy: a row that is kept must not keep the whole matrix alive.
                yield row.copy()

    def _check(self, audit: KvAudit, plan: StepPlan, batch: StepBatch) -> None:
        audit.moved(batch.moves, self._is_free)
        for chunk, span in zip(plan.chunks, batch.spans, strict=True):
            _check_rows(audit, span, chunk)


def _score(chunk: Chunk, rows: Iterator[npt.NDArray[np.float32]]) -> tuple[TokenLogprobs, ...]:
    """How likely the chunk's scored tokens were; takes one row of logits for each."""
    positions = chunk.scored_rows
    if not positions:
        return ()
    generation = chunk.sequence.generation
    assert generation is not None and generation.scoring is not None, "rows are scored for it"
    num_top = generation.scoring.num_top
    tokens = chunk.sequence.tokens
    return tuple(logprobs_of(next(rows), tokens[position + 1], num_top) for position in positions)


def _check_rows(audit: KvAudit, span: Span, chunk: Chunk) -> None:
    slots = np.concatenate([np.arange(start, start + length) for start, length in span.ranges])
    sequence = chunk.sequence
    tokens = [*sequence.tokens[: chunk.stop], *chunk.drafted]
    audit.read_and_written(sequence.namespace, tokens, slots, chunk.start)
