"""The masks of one step, filled on a thread of their own while the model computes that step.

A mask depends on the tokens that are there and not on the logits, so it need not wait for them.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from flowforge.engine.token_choice import new_mask

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.constraint import TokenConstraint
    from flowforge.engine.sequence import Generation

    Mask: TypeAlias = npt.NDArray[np.uint32]
    Filled: TypeAlias = dict[int, "Mask | Exception"]


@dataclass(frozen=True, slots=True)
class MaskStatistics:
    """num_masks: filled ahead. fill_s: seconds that it took. wait_s: of those, not hidden."""

    num_masks: int = 0
    fill_s: float = 0.0
    wait_s: float = 0.0


class MaskFiller:
    """Owns the thread, which lives from the first constrained step to `close`. Not thread-safe.

    Between `start` and the first `take` nobody else may use the constraints of that step.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._thread: ThreadPoolExecutor | None = None
        self._step: Future[Filled] | None = None
        self._num_masks = 0
        self._fill_s = 0.0
        self._wait_s = 0.0

    def start(self, generations: Iterable[Generation | None]) -> None:
        """Begin to fill the masks of the generations that are constrained and will sample."""
        self.settle()
        constraints = [
            generation.request.constraint
            for generation in generations
            if generation is not None and generation.max_tokens > 0
            if generation.request.constraint is not None
        ]
        if constraints:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "flowforge-masks")
            self._step = self._thread.submit(self._fill, constraints)

    def take(self, constraint: TokenConstraint) -> Mask | None:
        """The mask of one constraint of this step, the caller's own; None when it was not begun.

        Raises what the constraint raised.
        """
        filled = self._filled()
        mask = filled.pop(id(constraint), None)
        if isinstance(mask, Exception):
            raise mask
        return mask

    def settle(self) -> None:
        """Wait for a step that was begun and forget what it filled."""
        self._filled()
        self._step = None

    def close(self) -> None:
        """End the thread. Idempotent."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._step = None

    def statistics(self) -> MaskStatistics:
        """A snapshot."""
        return MaskStatistics(self._num_masks, self._fill_s, self._wait_s)

    def _filled(self) -> Filled:
        if self._step is None:
            return {}
        if not self._step.done():
            started_at = time.perf_counter()
            self._step.result()
            self._wait_s += time.perf_counter() - started_at
        return self._step.result()

    def _fill(self, constraints: list[TokenConstraint]) -> Filled:
        started_at = time.perf_counter()
        filled: Filled = {}
        for constraint in constraints:
            mask = new_mask(self._vocab_size)
            try:
                constraint.fill_mask(mask)
            except Exception as error:
                # Its own generation is told, when it takes the mask.
                filled[id(constraint)] = error
            else:
                filled[id(constraint)] = mask
        self._num_masks += len(filled)
        self._fill_s += time.perf_counter() - started_at
        return filled
