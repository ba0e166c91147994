"""What is known of a run from its events alone: the state that a reader of the stream rebuilds.

A picture does not depend on how often a reader looked: coalesced texts give the same one as each
text by itself, and so do events that went through JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from flowforge.runtime.events import (
    RunCancelled,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepAsked,
    StepCached,
    StepCancelled,
    StepCaught,
    StepFailed,
    StepFinished,
    StepRetried,
    StepSkipped,
    StepStarted,
    StepText,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.backends.protocol import FinishReason, JsonValue, Usage
    from flowforge.journal.records import RunStatus
    from flowforge.runtime.events import Accounting, Event

StepStatus = Literal["running", "asking", "done", "failed", "cancelled", "skipped"]


@dataclass(slots=True)
class StepPicture:
    """One try of a step, or one of its samples.

    text, num_tokens: what a model wrote so far; once the step has an end, its value says it.
    is_cached: whether its result is one that was there before. failure: why it failed, also where
    it was tried again (`next_path`) or caught.
    """

    path: str
    verb: str | None
    status: StepStatus
    started_s: float
    ended_s: float | None = None
    continues: str | None = None
    text: str = ""
    num_tokens: int = 0
    question: StepAsked | None = None
    value: JsonValue = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    failure: StepFailed | None = None
    next_path: str | None = None
    is_caught: bool = False
    is_cached: bool = False


@dataclass(slots=True)
class RunPicture:
    """A run; steps are in order of their start. interrupted: what the last process had cut."""

    workflow: str = ""
    inputs: Mapping[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])
    seed: int = 0
    status: RunStatus = "running"
    steps: dict[str, StepPicture] = field(default_factory=dict[str, StepPicture])
    num_resumes: int = 0
    interrupted: tuple[str, ...] = ()
    outputs: Mapping[str, JsonValue] | None = None
    failures: tuple[StepFailed, ...] = ()
    accounting: Accounting | None = None

    def take(self, event: Event) -> None:
        """One more event, in order."""
        fact, time_s = event.fact, event.time_s
        match fact:
            case RunStarted(workflow, inputs, seed):
                self.workflow, self.inputs, self.seed = workflow, inputs, seed
            case RunResumed(_, interrupted):
                self.num_resumes += 1
                self.interrupted = interrupted
            case StepStarted(path, verb, continues):
                step = StepPicture(path, verb, "running", time_s, continues=continues)
                self.steps[path] = step
            case StepSkipped(path):
                self.steps[path] = StepPicture(path, None, "skipped", time_s, time_s)
            case StepText(path, text, num_tokens, is_thought):
                step = self.step_at(path, time_s)
                step.text += "" if is_thought else text
                step.num_tokens += num_tokens
            case StepAsked(path):
                step = self.step_at(path, time_s)
                step.status, step.question = "asking", fact
            case StepCached(path):
                self.step_at(path, time_s).is_cached = True
            case RunFinished(outputs, accounting):
                self.status, self.outputs, self.accounting = "done", outputs, accounting
            case RunFailed(failures, accounting):
                self.status, self.failures, self.accounting = "failed", failures, accounting
            case RunCancelled(accounting):
                self.status, self.accounting = "cancelled", accounting
            case StepFinished() | StepFailed() | StepRetried() | StepCaught() | StepCancelled():
                self._end(fact, time_s)
            case _:
                # What else a step tells of itself changes nothing of where it stands.
                pass

    def step_at(self, path: str, time_s: float) -> StepPicture:
        """A step, which is there from now on if nothing was told of it yet."""
        if path not in self.steps:
            self.steps[path] = StepPicture(path, None, "running", time_s)
        return self.steps[path]

    def _end(
        self,
        fact: StepFinished | StepFailed | StepRetried | StepCaught | StepCancelled,
        time_s: float,
    ) -> None:
        # A step may end without a start: one whose back-off was cancelled, an output that failed.
        step = self.step_at(fact.path, time_s)
        match fact:
            case StepFinished(_, value, finish_reason, usage):
                step.status = "done"
                step.value, step.finish_reason, step.usage = value, finish_reason, usage
            case StepCancelled():
                step.status = "cancelled"
            case StepFailed():
                step.status, step.failure = "failed", fact
            case StepRetried(path, code, message, help, next_path):
                step.status, step.next_path = "failed", next_path
                step.failure = StepFailed(path, code, message, help)
            case StepCaught(path, code, message, help):
                # Its end is still to come.
                step.is_caught, step.failure = True, StepFailed(path, code, message, help)
                return
        step.ended_s = time_s
        step.text, step.num_tokens = "", 0
