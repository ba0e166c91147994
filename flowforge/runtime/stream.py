"""The numbered event stream of one run and its readers.

A reader is never waited for and never loses a fact about a step or the run. What a slow reader has
not taken yet is coalesced: texts of one step become one `StepText`, in the place of the first, so
what waits for a reader is bounded by the run's steps and its text, not by its tokens. A reader
who comes late is a slow reader: it gets the whole run, coalesced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from flowforge.runtime.events import (
    Event,
    RunCancelled,
    RunFailed,
    RunFinished,
    StepText,
)
from flowforge.runtime.joined_text import JoinedText

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from flowforge.runtime.events import Fact

MAX_WAITING = 256
"""Events that may wait for a reader one by one before its texts are coalesced."""


@dataclass(slots=True, eq=False)
class _Backlog:
    """Events in order, texts coalesced per step once more than `max_separate` wait."""

    max_separate: int
    entries: list[Event | JoinedText] = field(default_factory=list["Event | JoinedText"])
    texts: dict[str, JoinedText] = field(default_factory=dict[str, JoinedText])

    def put(self, event: Event) -> None:
        fact = event.fact
        if not isinstance(fact, StepText):
            self.entries.append(event)
            # Text that follows a step's start or end must not move in front of it.
            text = self.texts.pop(getattr(fact, "path", ""), None)
            if text is not None:
                text.close(fact)
            return
        waiting = self.texts.get(fact.path)
        is_same = waiting is not None and waiting.is_thought == fact.is_thought
        if waiting is not None and is_same and len(self.entries) >= self.max_separate:
            waiting.add(fact)
            return
        text = JoinedText(event, fact)
        self.entries.append(text)
        self.texts[fact.path] = text

    def events(self) -> list[Event]:
        return [entry.event() if isinstance(entry, JoinedText) else entry for entry in self.entries]

    def take(self) -> list[Event]:
        events = self.events()
        self.entries = []
        self.texts = {}
        return events


class EventReader:
    """One reader's view of a run, from its first event to its terminal one.

    Numbers of events it gets rise; a gap in them means that texts were coalesced.
    """

    def __init__(self, history: list[Event], max_waiting: int) -> None:
        self._backlog = _Backlog(max_waiting)
        self._wakeup = anyio.Event()
        self._is_over = False
        for event in history:
            self.put(event)

    async def __aiter__(self) -> AsyncGenerator[Event]:
        """Events until the terminal one; one task at a time may iterate."""
        while True:
            for event in self._backlog.take():
                yield event
                if is_terminal(event.fact):
                    return
            if not self._backlog.entries:
                self._wakeup = anyio.Event()
                await self._wakeup.wait()

    async def batch(self) -> list[Event]:
        """All that waits, once something does; empty behind the terminal event."""
        while not self._backlog.entries:
            if self._is_over:
                return []
            self._wakeup = anyio.Event()
            await self._wakeup.wait()
        events = self._backlog.take()
        self._is_over = is_terminal(events[-1].fact)
        return events

    def put(self, event: Event) -> None:
        """For the stream alone: one more event waits."""
        self._backlog.put(event)
        self._wakeup.set()


class EventStream:
    """The one writer's end: numbers facts and hands them to every reader, at once and unawaited."""

    def __init__(
        self, clock: Callable[[], float], tap: Callable[[Event], None] | None = None
    ) -> None:
        """tap: is handed every event at once, one by one."""
        self._clock = clock
        self._tap = tap
        self._start_s = clock()
        self._num_events = 0
        self._held: list[Fact] | None = None
        self._history = _Backlog(max_separate=0)
        self._readers: list[EventReader] = []
        self._is_closed = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since the stream began."""
        return self._clock() - self._start_s

    @property
    def is_closed(self) -> bool:
        """Whether the terminal event has been emitted."""
        return self._is_closed

    def restore(self, history: Sequence[Event], next_seq: int) -> None:
        """Begin with the events of earlier processes; numbers and times go on behind them."""
        assert self._num_events == 0, "a stream is restored before its first event"
        for event in history:
            self._hand_out(event)
        self._num_events = next_seq
        if history:
            self._start_s = self._clock() - history[-1].time_s

    def emit(self, fact: Fact) -> None:
        """Number a fact and hand it out. After a terminal fact there must be none."""
        if self._held is None:
            self._hand_out(self._numbered(fact))
        else:
            self._held.append(fact)

    def reserve(self, facts: Sequence[Fact]) -> list[Event]:
        """Number facts that `publish`, which must follow, hands out.

        What is emitted until then comes behind them.
        """
        events = [self._numbered(fact) for fact in facts]
        self._held = []
        return events

    def publish(self, events: Sequence[Event]) -> None:
        """Hand out what was reserved."""
        for event in events:
            self._hand_out(event)
        held, self._held = self._held, None
        for fact in held or ():
            self.emit(fact)

    def next_event(self, fact: Fact) -> Event:
        """The event that this fact would be if it were emitted next."""
        return Event(self._num_events, self.elapsed_s, fact)

    def _numbered(self, fact: Fact) -> Event:
        assert not self._is_closed, f"{type(fact).__name__} after the end of the run"
        self._is_closed = is_terminal(fact)
        event = self.next_event(fact)
        self._num_events += 1
        return event

    def _hand_out(self, event: Event) -> None:
        if self._tap is not None:
            self._tap(event)
        self._history.put(event)
        for reader in self._readers:
            reader.put(event)

    def reader(self, *, max_waiting: int = MAX_WAITING) -> EventReader:
        """A new reader, which gets the run from its first event."""
        reader = EventReader(self._history.events(), max_waiting)
        self._readers.append(reader)
        return reader


def is_terminal(fact: Fact) -> bool:
    """Whether a stream ends with this fact."""
    return isinstance(fact, RunFinished | RunFailed | RunCancelled)
