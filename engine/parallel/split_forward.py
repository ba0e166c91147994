"""The first rank's forward pass: it tells the workers of each batch and computes its own part."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    import torch

    from flowforge.engine.forward import StepForward
    from flowforge.engine.parallel.workers import Workers
    from flowforge.engine.step_batch import StepBatch


class SplitForward:
    """A `StepForward` over all ranks.

    An error in it ends the workers, because the ranks are out of step: every call then raises
    EngineError EN237.
    """

    def __init__(self, own: StepForward, workers: Workers) -> None:
        self._own = own
        self._workers = workers
        self._hidden: torch.Tensor | None = None
        self._not_asked: deque[list[int]] = deque()

    @property
    def page_size(self) -> int:
        """See `StepForward.page_size`."""
        return self._own.page_size

    @property
    def num_rows_read(self) -> int:
        """Of one rank: each has its own heads of every row."""
        return self._own.num_rows_read

    def move(self, batch: StepBatch) -> None:
        """See `StepForward.move`."""
        self._catch_up()
        self._workers.send(batch)
        with self._in_step():
            self._own.move(batch)

    def hidden(self, batch: StepBatch) -> torch.Tensor:
        """See `StepForward.hidden`."""
        with self._in_step():
            self._hidden = self._own.hidden(batch)
        self._not_asked.extend(batch.logit_rows)
        return self._hidden

    def logits(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """See `StepForward.logits`; groups in the order of the batch."""
        assert rows == self._not_asked.popleft(), "the workers compute groups in the batch's order"
        with self._in_step():
            return self._own.logits(hidden, rows)

    @contextmanager
    def apart(self) -> Generator[None]:
        """For what ranks do together beside a batch: no batch is under way within."""
        self._catch_up()
        with self._in_step():
            yield

    def _catch_up(self) -> None:
        """Take part in what the workers do of the last batch although nobody asked for it here."""
        while self._not_asked:
            assert self._hidden is not None, "groups are of hidden states"
            self.logits(self._hidden, self._not_asked[0])

    @contextmanager
    def _in_step(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            self._not_asked.clear()
            raise self._workers.failure(error) from error
