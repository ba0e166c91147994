"""What a run's steps computed, for whom: the accesses that another order of eviction is held to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.engine.scheduler import StepPlan


@dataclass(frozen=True, slots=True)
class Progress:
    """A sequence in a step. num_tokens: computed of it when the step is over."""

    call_idx: int
    num_tokens: int


@dataclass(slots=True)
class StepLog:
    """Every step's sequences, in order. Give `note` to `EngineCore.watch_plans`.

    num_distinct: the rows that the last plan reads, each once. num_rows: that it computes.
    """

    page_size: int
    steps: list[tuple[Progress, ...]] = field(default_factory=list[tuple[Progress, ...]])
    num_distinct: int = 0
    num_rows: int = 0

    def note(self, plan: StepPlan) -> None:
        """A step is about to be computed."""
        logical = sum(chunk.stop for chunk in plan.chunks)
        self.num_distinct = logical - self.page_size * sum(run.num_reread for run in plan.shared)
        self.num_rows = plan.num_tokens
        computed = [Progress(chunk.sequence.id - 1, chunk.stop) for chunk in plan.chunks]
        ready = [Progress(one.id - 1, one.num_computed) for one in plan.ready]
        self.steps.append((*computed, *ready))
