"""A run as a viewer sees it: everything that can be known from its events, folded one by one.

Pure: no loop, no clock, no screen. It takes any events in any order and never fails: what comes a
second time is left out, and a step that is heard of before its start is there from then on. Memory
is bounded by the run's steps and their values; texts and the log keep their ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flowforge.runtime.events import (
    PagesSampled,
    RunResumed,
    StepFinished,
    StepPart,
    StepPrompted,
    StepStarted,
    StepText,
    ToolCalled,
    ToolReturned,
)
from flowforge.runtime.picture import RunPicture
from flowforge.view.event_lines import event_line, weight_of
from flowforge.view.series import CountSeries, Samples
from flowforge.view.step_tree import last_tries
from flowforge.view.stream_text import StreamText
from flowforge.view.texts import value_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.backends.notices import PromptPart
    from flowforge.backends.protocol import BackendStatistics
    from flowforge.runtime.events import Event
    from flowforge.runtime.picture import StepPicture
    from flowforge.view.event_lines import Weight

MAX_LOG_LINES = 5_000

Activity = Literal["reading the prompt", "writing", "waits for you", "runs", "calls a tool"]


@dataclass(frozen=True, slots=True)
class LogLine:
    """An event in the log. text: of models and tools too, so not to be printed as it is."""

    seq: int
    time_s: float
    path: str | None
    weight: Weight
    text: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A model's call of a tool. result: None before it is there; is_error: the call failed."""

    call: ToolCalled
    called_s: float
    result: ToolReturned | None = None
    returned_s: float | None = None


class RunView:
    """Owned by one viewer, which is the only one to call `take`; the rest is for its widgets."""

    def __init__(self) -> None:
        self.picture = RunPicture()
        self.texts: dict[str, StreamText] = {}
        self.calls: dict[str, ToolUse] = {}
        self.prompts: dict[str, list[Sequence[PromptPart]]] = {}
        self._logged: deque[Event] = deque(maxlen=MAX_LOG_LINES)
        self.tokens = CountSeries()
        self.ttft_s = Samples()
        self.tpot_s = Samples()
        self.pages = Samples()
        self.statistics: BackendStatistics | None = None
        self.page_map: str = ""
        self.last_seq: int = -1
        self.time_s: float = 0.0
        self.num_tokens: int = 0
        self.revision: int = 0
        self._thinking: set[str] = set()
        self._asked_again: set[str] = set()
        self._changed_steps = 0
        self._summed: _Sum | None = None

    # -- taking in ----------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """One more event; one that is not newer than the last is left out."""
        if event.seq <= self.last_seq:
            return
        self.last_seq = event.seq
        self.time_s = max(self.time_s, event.time_s)
        self.revision += 1
        fact = event.fact
        if isinstance(fact, StepText):
            self._take_text(fact, event.time_s)
            return
        if isinstance(fact, PagesSampled):
            self.page_map = fact.page_map
            return
        if isinstance(fact, StepPart):
            return
        if isinstance(fact, StepPrompted):
            self._take_prompt(fact)
            return
        self._changed_steps += 1
        self.picture.take(event)
        self._logged.append(event)
        match fact:
            case ToolCalled(path):
                self.calls[path] = ToolUse(fact, event.time_s)
            case ToolReturned(path, tool):
                call = self.calls.get(path)
                known = ToolCalled(path, tool, {}) if call is None else call.call
                since_s = event.time_s if call is None else call.called_s
                self.calls[path] = ToolUse(known, since_s, fact, event.time_s)
            case StepStarted(path):
                # A try that was cut begins again, or goes on with what it had written.
                self.texts.pop(path, None)
                self.prompts.pop(path, None)
                self._thinking.discard(path)
            case RunResumed():
                self._asked_again = set(self.prompts)
            case StepFinished():
                self._measure(fact)
            case _:
                pass

    def take_time(self, time_s: float) -> None:
        """It is so late in the run, though nothing has been told since."""
        self.time_s = max(self.time_s, time_s)

    def take_statistics(self, statistics: BackendStatistics) -> None:
        """What the run's backend counted a moment ago."""
        self.statistics = statistics
        self.page_map = statistics.page_map or self.page_map
        self.revision += 1
        if statistics.pages_total:
            self.pages.add(statistics.pages_held + statistics.pages_cached)

    def _take_prompt(self, fact: StepPrompted) -> None:
        known = self.prompts.setdefault(fact.path, [])
        if known and fact.path in self._asked_again and known[-1] == fact.parts:
            # What was cut is asked for a second time.
            self._asked_again.discard(fact.path)
            return
        known.append(fact.parts)

    def _take_text(self, fact: StepText, time_s: float) -> None:
        text = self.texts.get(fact.path)
        if text is None:
            text = self.texts[fact.path] = StreamText()
            self._changed_steps += 1
            self.picture.step_at(fact.path, time_s)
        if fact.is_thought:
            self._thinking.add(fact.path)
        elif fact.text and fact.path in self._thinking:
            # Thoughts and answer, apart.
            self._thinking.discard(fact.path)
            text.append("\n\n", 0, time_s)
        text.append(fact.text, fact.num_tokens, time_s)
        self.num_tokens += fact.num_tokens
        self.tokens.add(time_s, fact.num_tokens)

    def _measure(self, fact: StepFinished) -> None:
        usage = fact.usage
        if usage is None or usage.generated_tokens < 1:
            return
        if fact.path not in self.texts:
            # A recording has no texts but in the values of steps.
            self.num_tokens += usage.generated_tokens
        self.ttft_s.add(usage.ttft_s)
        if usage.generated_tokens > 1 and usage.total_s > usage.ttft_s:
            self.tpot_s.add((usage.total_s - usage.ttft_s) / (usage.generated_tokens - 1))

    # -- what is known --------------------------------------------------------------------------

    def log(self, num: int = MAX_LOG_LINES) -> list[LogLine]:
        """At most `num` lines about the last events, the newest last; made when asked for."""
        lines: list[LogLine] = []
        for event in reversed(self._logged):
            if len(lines) == num:
                break
            text = event_line(event.fact)
            if text is not None:
                path: str | None = getattr(event.fact, "path", None)
                weight = weight_of(event.fact)
                lines.append(LogLine(event.seq, event.time_s, path, weight, text))
        return lines[::-1]

    @property
    def steps_revision(self) -> int:
        """Rises with everything that the tree of steps shows, but for texts and times."""
        return self._changed_steps

    @property
    def is_over(self) -> bool:
        """Whether the run has its terminal event."""
        return self.picture.status != "running"

    @property
    def questions(self) -> list[StepPicture]:
        """The steps that wait for a person, the longest waiting first."""
        return self._sum.questions

    @property
    def failures(self) -> list[StepPicture]:
        """The tries that failed, in the order of their starts."""
        return self._sum.failures

    @property
    def num_ended(self) -> int:
        """How many of the steps that are known have ended."""
        return self._sum.num_ended

    @property
    def num_forks(self) -> int:
        """How many steps continue a conversation of another one."""
        return self._sum.num_forks

    @property
    def writers(self) -> dict[str, StepPicture]:
        """The steps in which a model writes, in the order of their starts, each by its last try."""
        return self._sum.writers

    @property
    def prompt_tokens(self) -> tuple[int, int]:
        """Prompt tokens computed and reused: of the run, or of what has ended so far."""
        accounting = self.picture.accounting
        if accounting is not None:
            return accounting.prefilled_tokens, accounting.reused_tokens
        return self._sum.prompt_tokens

    @property
    def _sum(self) -> _Sum:
        # Asked for many times a frame, and as long as the run has steps: made once a change.
        if self._summed is None or self._summed.revision != self._changed_steps:
            self._summed = _sum_of(self)
        return self._summed

    def text_of(self, path: str) -> str:
        """What a step has written, or its value once it has one and nothing was seen of it."""
        step = self.picture.steps.get(path)
        text = self.texts.get(path)
        if step is not None and step.status == "done" and step.verb == "gen":
            is_whole = text is not None and text.start == 0
            return text.kept if text is not None and is_whole else value_text(step.value)
        if text is not None:
            return text.kept
        if step is not None and step.status == "done":
            return value_text(step.value)
        return ""

    def activity_of(self, step: StepPicture) -> Activity | None:
        """What a step that has not ended is doing."""
        if step.ended_s is not None:
            return None
        if step.status == "asking":
            return "waits for you"
        if step.verb == "call":
            return "calls a tool"
        if step.verb != "gen":
            return "runs"
        text = self.texts.get(step.path)
        return "writing" if text is not None and text.num_tokens else "reading the prompt"

    def tokens_per_s(self, window_s: int = 3) -> float:
        """Tokens a second over the last whole seconds; 0 once the run is over."""
        if self.is_over:
            return 0.0
        counts = self.tokens.last(window_s, self.time_s)
        return sum(counts) / window_s


@dataclass(frozen=True, slots=True)
class _Sum:
    """What is known of all steps together at one revision."""

    revision: int
    questions: list[StepPicture]
    failures: list[StepPicture]
    writers: dict[str, StepPicture]
    num_ended: int
    num_forks: int
    prompt_tokens: tuple[int, int]


def _sum_of(view: RunView) -> _Sum:
    steps = [*view.picture.steps.values()]
    usages = [step.usage for step in steps if step.usage is not None]
    writers = {
        step.path: step
        for step in last_tries(view.picture)
        if step.verb == "gen" or step.path in view.texts
    }
    return _Sum(
        revision=view.steps_revision,
        questions=[step for step in steps if step.status == "asking"],
        failures=[step for step in steps if step.status == "failed"],
        writers=writers,
        num_ended=sum(step.ended_s is not None for step in steps),
        num_forks=sum(step.continues is not None for step in steps),
        prompt_tokens=(
            sum(one.prefilled_tokens for one in usages),
            sum(one.reused_tokens for one in usages),
        ),
    )
