"""Runs for tests of the viewer: events as a run tells them, and a source that hands them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge.backends.protocol import Usage
from flowforge.runtime.events import (
    Accounting,
    Event,
    PagesSampled,
    RunFailed,
    RunFinished,
    RunStarted,
    StepAsked,
    StepFailed,
    StepFinished,
    StepPrompted,
    StepStarted,
    StepText,
    ToolCalled,
    ToolReturned,
)
from flowforge.view.control import RunLimits
from flowforge.view.sources import Batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.backends.notices import PromptPart
    from flowforge.backends.protocol import BackendStatistics
    from flowforge.runtime.events import Fact
    from flowforge.view.control import Action
    from flowforge.view.sources import Link

COST = Accounting(79, 127, 34, 79, 12, 64, 9.0)


def events_of(*facts: Fact, step_s: float = 0.5, first: int = 0) -> list[Event]:
    """Numbered events, one every `step_s` seconds."""
    return [Event(first + idx, (first + idx) * step_s, fact) for idx, fact in enumerate(facts)]


def begun() -> list[Fact]:
    """A run whose first step is done and whose branches write."""
    usage = Usage(40, 40, 0, 21, 0.25, 2.25)
    facts: list[Fact] = [
        RunStarted("analyst", {"topic": "electric bicycles"}, 7),
        StepStarted("angles", "gen"),
        StepText("angles", '["Expenses", "Distance"]', 21),
        StepFinished("angles", ["Expenses", "Distance"], "stop", usage),
        StepStarted("explore", "for"),
        *(StepStarted(f"explore[{idx}]/draft", "gen", "angles") for idx in range(3)),
    ]
    for word in ("The cost ", "of [red]a 漢字 bicycle[/red] ", "is\x1b[2J what\nit is. "):
        facts += [StepText(f"explore[{idx}]/draft", word, 4) for idx in range(3)]
    return facts


def running() -> list[Event]:
    """A run in the middle of its branches."""
    return events_of(*begun())


def asking() -> list[Event]:
    """A run in which a person is asked, and a tool was called."""
    return events_of(
        *begun(),
        ToolCalled("explore[0]/draft/price[0]", "price", {"of": "bicycle"}),
        ToolReturned("explore[0]/draft/price[0]", "price", {"euro": 2400}),
        StepStarted("gate", "ask"),
        StepAsked("gate", "Publish the report?", ("yes", "no"), {"draft": "it matters"}),
    )


def prompted() -> list[Event]:
    """A run in which prompts were told, and what one of them says spells a control token."""
    events = [event.fact for event in asking()]
    turn: tuple[PromptPart, ...] = (
        ("special", "<|im_start|>"),
        ("template", "user\n"),
        ("content", "Explore this angle: Expenses <|im_end|>"),
        ("special", "<|im_end|>"),
        ("template", "\n"),
        ("special", "<|im_start|>"),
        ("template", "assistant\n"),
    )
    system: tuple[PromptPart, ...] = (
        ("special", "<|im_start|>"),
        ("template", "system\n"),
        ("content", "You are a careful 漢字 analyst."),
        ("special", "<|im_end|>"),
        ("template", "\n"),
    )
    first = StepPrompted("angles", (*system, *turn))
    second = StepPrompted(
        "explore[0]/draft", (("special", "<|im_end|>"), ("template", "\n"), *turn)
    )
    return events_of(*events[:2], first, *events[2:6], second, *events[6:])


def failed() -> list[Event]:
    """A run that failed in one of its branches."""
    failure = StepFailed("explore[1]/draft", "TL203", "the tool has no answer", "try another tool")
    return events_of(*begun(), failure, RunFailed((failure,), COST))


def done() -> list[Event]:
    """A run that came to its output."""
    usage = Usage(60, 8, 52, 12, 0.1, 1.1)
    ends = [
        StepFinished(f"explore[{idx}]/draft", "The cost of it.", "stop", usage) for idx in range(3)
    ]
    explored = StepFinished("explore", ["x", "x", "x"])
    return events_of(*begun(), *ends, explored, RunFinished({}, COST))


def paged() -> list[Event]:
    """The same, with what the KV pages were used for while its branches wrote and behind them."""
    events = [event.fact for event in done()]
    first = PagesSampled("s6p3f55")
    return events_of(*events[:8], first, *events[8:-1], PagesSampled("s6c6f52"), events[-1])


@dataclass(slots=True)
class GivenSource:
    """Hands out what a test gives it, at the next look."""

    waiting: list[Event]
    link: Link = "live"
    statistics: BackendStatistics | None = None
    is_closed: bool = False

    def poll(self, budget_s: float) -> Batch:
        """All that waits, and statistics that were not handed out before."""
        events, self.waiting = tuple(self.waiting), []
        statistics, self.statistics = self.statistics, None
        return Batch(events, self.link, statistics=statistics)

    def close(self) -> None:
        """Take note of it."""
        self.is_closed = True

    def give(self, events: Sequence[Event]) -> None:
        """More to hand out."""
        self.waiting += events


@dataclass(slots=True)
class NotedControl:
    """Notes the orders that a viewer gives."""

    actions: frozenset[Action] = frozenset(
        {"cancel", "cancel step", "pause", "go on", "answer", "limits"}
    )
    is_paused: bool = False
    orders: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    def order(self, action: Action, *, path: str = "", text: str = "") -> None:
        """Take note of an order."""
        self.orders.append((action, path, text))
        if action in {"pause", "go on"}:
            self.is_paused = action == "pause"

    def limits(self, changes: Mapping[str, float | None]) -> RunLimits:
        """Take note of changes; so much is used at any time."""
        if changes:
            self.orders += [("limits", name, str(limit)) for name, limit in changes.items()]
        limits = {"concurrency": None, "max_tokens": 500, "max_time_s": None}
        return RunLimits(limits, {"concurrency": 2, "max_tokens": 338, "max_time_s": 21.5})
