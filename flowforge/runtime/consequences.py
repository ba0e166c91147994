"""What follows from one report: collected until nothing more follows."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from flowforge.runtime.commands import StartTimer, StopTimer
from flowforge.runtime.state import Status, Timer

if TYPE_CHECKING:
    from flowforge.runtime.commands import Command
    from flowforge.runtime.events import Fact
    from flowforge.runtime.state import RunState, ScopeState, StepState, TimerPurpose


class Consequences:
    """Commands and facts, in order, and what of the state is still to be looked at.

    Consequences wait in queues and do not recurse: a long chain of steps that end at once must not
    be deep, and a scope is looked at only when the step that changed it is whole again.
    """

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.commands: list[Command] = []
        self.facts: list[Fact] = []
        self._checks: deque[StepState | ScopeState] = deque()

    def check(self, changed: StepState | ScopeState) -> None:
        """It may be over now: look at it when the change at hand is complete."""
        self._checks.append(changed)

    def next_check(self) -> StepState | ScopeState | None:
        """What to look at next, if anything."""
        return self._checks.popleft() if self._checks else None

    def make_ready(self, step: StepState) -> None:
        """It waits for nobody any more."""
        self.state.num_queued += 1
        heappush(self.state.ready, (-step.node.step.priority, self.state.num_queued, step))

    def next_ready(self) -> StepState | None:
        """The ready step to start next: by priority, then by when it became ready."""
        ready = self.state.ready
        while ready:
            _, _, step = heappop(ready)
            if step.status is Status.WAITING:
                return step
        return None

    def start_timer(self, step: StepState, purpose: TimerPurpose, delay_s: float) -> None:
        """Have the time reported that is the step's for this purpose."""
        name = f"{step.attempt_path}:{purpose}"
        step.timers.add(name)
        self.state.timers[name] = Timer(step, purpose)
        self.commands.append(StartTimer(name, delay_s))

    def stop_timers(self, step: StepState) -> None:
        """The step waits for no time any more."""
        for name in sorted(step.timers):
            del self.state.timers[name]
            self.commands.append(StopTimer(name))
        step.timers.clear()
