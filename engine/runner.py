"""Carries out step plans on the model: row copies, one forward pass, logits where wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from flowforge.engine.device_step import DeviceStep
from flowforge.engine.model_interface import ChunkLogits, StepResult
from flowforge.engine.row_draw import HostLogits
from flowforge.engine.sampling import logprobs_of
from flowforge.engine.step_batch import step_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from flowforge.engine.attention.reads import Span
    from flowforge.engine.device_step import DrawnTokens
    from flowforge.engine.forward import StepForward
    from flowforge.engine.kv.audit import KvAudit
    from flowforge.engine.kv.pool import PageId
    from flowforge.engine.model_interface import LaunchedStep
    from flowforge.engine.row_draw import RowDraw
    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.engine.step_batch import StepBatch
    from flowforge.engine.step_plan import Chunk, StepPlan

# Rows of one LM head call. On the host: wide enough to be efficient, narrow enough that 49,152 fp32
# columns of logits stay in the megabytes.
_LM_HEAD_ROWS = 32
_DEVICE_LM_HEAD_ROWS = 256


class ModelRunner:
    """Turns plans into batches, and what the forward pass says into what the core asks for.

    audit: checks every row that is read, for debugging; is_free: of the cache that it watches.
    drawn: draws tokens where the logits are, and is what the forward pass is fed from; None: logits
    come to the host. vocab_size: ids below it may be said, the model's rows above it are padding;
    None: all are ids.
    """

    def __init__(
        self,
        forward: StepForward,
        audit: KvAudit | None = None,
        is_free: Callable[[PageId], bool] = lambda _: False,
        drawn: DrawnTokens | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._forward = forward
        self._audit = audit
        self._is_free = is_free
        self._drawn = drawn

    @property
    def num_rows_read(self) -> int:
        """See `StepForward.num_rows_read`."""
        return self._forward.num_rows_read

    @property
    def draws_tokens(self) -> bool:
        """See `StepRunner.draws_tokens`."""
        return self._drawn is not None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """See `StepRunner.launch`. Where logits come to the host, rows are written when it returns.

        Rows are read and written through the paths as planned.
        """
        drawn = self._drawn
        num_rows = _LM_HEAD_ROWS if drawn is None else _DEVICE_LM_HEAD_ROWS
        batch = step_batch(plan, self._forward.page_size, num_rows)
        self._forward.move(batch)
        if self._audit is not None:
            self._audit.moved(batch.moves, self._is_free)
            self._check(self._audit, plan, batch, is_fed=False)
        hidden = self._forward.hidden(batch) if plan.chunks else None

        def logits(rows: list[int]) -> torch.Tensor:
            assert hidden is not None, "logits are of chunks"
            return self._forward.logits(hidden, rows)[:, : self._vocab_size]

        if drawn is None:
            return _HostStep(plan, batch.logit_rows, logits)

        def check() -> None:
            if self._audit is not None:
                self._check(self._audit, plan, batch, is_fed=True)

        return DeviceStep(plan, batch.logit_rows, logits, drawn, check)

    @staticmethod
    def _check(audit: KvAudit, plan: StepPlan, batch: StepBatch, *, is_fed: bool) -> None:
        """Check the rows that are read and written by chunks with or without a fed token."""
        for chunk, span in zip(plan.chunks, batch.spans, strict=True):
            # Who is not there any more has lost its rows, too.
            is_known = chunk.stop <= len(chunk.sequence.tokens)
            if (chunk.feed is not None) is is_fed and is_known:
                _check_rows(audit, span, chunk)


class _HostStep:
    """A step that is computed; its logits are taken to the host, group by group, when read."""

    def __init__(
        self,
        plan: StepPlan,
        logit_rows: Sequence[list[int]],
        compute: Callable[[list[int]], torch.Tensor],
    ) -> None:
        """See `DeviceStep`."""
        self._plan = plan
        self._logit_rows = logit_rows
        self._compute = compute

    def draw(self, draws: Sequence[RowDraw], kept: Sequence[int] = ()) -> None:
        """See `LaunchedStep.draw`."""
        raise AssertionError("the runner draws no tokens")

    @torch.inference_mode()
    def read(self) -> StepResult:
        """See `LaunchedStep.read`."""
        rows = self._rows()
        behind = [
            [HostLogits(next(rows)) for _ in range(1 + len(chunk.drafted))] if chunk.is_last else []
            for chunk in self._plan.chunks
        ]
        return StepResult(
            [
                ChunkLogits(tuple(of_chunk), _score(chunk, rows))
                for chunk, of_chunk in zip(self._plan.chunks, behind, strict=True)
            ]
        )

    def _rows(self) -> Iterator[npt.NDArray[np.float32]]:
        """One row after the other, a call of the LM head for each group when it is reached."""
        for group in self._logit_rows:
            for row in self._compute(group).cpu().numpy():
                # A copy: a row that is kept must not keep the whole matrix alive.
                yield row.copy()


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
