"""What a run's steps computed, for whom: the accesses that another order of eviction is held to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.bench.program_calls import Ids, Texts
    from flowforge.engine.scheduler import StepPlan


@dataclass(frozen=True, slots=True)
class Progress:
    """A sequence in a step. num_tokens: computed of it when the step is over."""

    call_idx: int
    num_tokens: int


@dataclass(slots=True)
class StepLog:
    """Every step's sequences, in order. Give `note` to `EngineCore.watch_plans`.

    num_rows: that the last plan computes.
    """

    page_size: int
    steps: list[tuple[Progress, ...]] = field(default_factory=list[tuple[Progress, ...]])
    num_rows: int = 0

    def note(self, plan: StepPlan) -> None:
        """A step is about to be computed."""
        self.num_rows = plan.num_tokens
        computed = [Progress(chunk.sequence.id - 1, chunk.stop) for chunk in plan.chunks]
        ready = [Progress(one.id - 1, one.num_computed) for one in plan.ready]
        self.steps.append((*computed, *ready))


class LivePages:
    """The pages that running calls need: full ones once for all, a filled part of one for each."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._num_tokens: dict[int, int] = {}

    def noted(self, step: tuple[Progress, ...], texts: Texts) -> None:
        """These calls ran; the whole prompt of each has its pages."""
        for one in step:
            self._num_tokens[one.call_idx] = max(one.num_tokens, len(texts.prompts[one.call_idx]))

    def ended(self, call_idx: int) -> None:
        """A call is over."""
        del self._num_tokens[call_idx]

    def count(self, tokens_of: Callable[[int], Ids]) -> int:
        """Pages of all calls that run. O(their pages)."""
        known: dict[tuple[int, Ids], int] = {}
        num_parts = 0
        for call_idx, num_tokens in self._num_tokens.items():
            tokens, page = tokens_of(call_idx)[:num_tokens], 0
            whole = num_tokens - num_tokens % self._page_size
            for start in range(0, whole, self._page_size):
                key = (page, tokens[start : start + self._page_size])
                page = known.setdefault(key, len(known) + 1)
            num_parts += whole < num_tokens
        return len(known) + num_parts
