"""The numbered event stream of one run and its readers.

A reader is never waited for and never loses a fact about a step or the run. What a slow reader has
not taken yet is coalesced: texts of one step become one `StepText`, in the place of the first, so
what waits for a reader is bounded by the run's steps and its text, not by its tokens. A reader
who comes late is a slow reader: it gets the whole run, coalesced. Of a long run that has an archive
it gets the beginning from there, without the texts of steps that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread

from flowforge.runtime.events import (
    Event,
    RunCancelled,
    RunFailed,
    RunFinished,
    StepAsked,
    StepPart,
    StepText,
)
from flowforge.runtime.joined_text import JoinedText

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

    from flowforge.runtime.events import Fact

MAX_WAITING = 256
"""Events that may wait for a reader one by one before its texts are coalesced."""

_MOST_KEPT = 4_096
"""Events of a run in memory from which on those that are archived are let go."""
_PAGE = 500


class Archive(Protocol):
    """Where the events of a stream are kept, but for texts. num_kept: those before this number."""

    @property
    def num_kept(self) -> int:
        """Grows as events are archived."""
        ...

    def events(self, end: int) -> Iterator[Event]:
        """Those before number `end`, in order; blocks as they are asked for."""
        ...


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
            if isinstance(fact, StepPart):
                # It may come behind any text of its step, of which it is a part.
                return
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
        self._past: Iterator[Event] | None = None
        self._backlog = _Backlog(max_waiting)
        self._wakeup = anyio.Event()
        self._is_over = False
        for event in history:
            self.put(event)

    async def __aiter__(self) -> AsyncGenerator[Event]:
        """Events until the terminal one; one task at a time may iterate."""
        while events := await self.batch():
            for event in events:
                yield event
                if is_terminal(event.fact):
                    return

    async def batch(self) -> list[Event]:
        """All that waits, once something does; empty behind the terminal event."""
        while not self._backlog.entries or self._past is not None:
            if self._past is not None:
                events = await anyio.to_thread.run_sync(_page_of, self._past)
                if events:
                    return events
                self._past = None
            elif self._is_over:
                return []
            else:
                self._wakeup = anyio.Event()
                await self._wakeup.wait()
        events = self._backlog.take()
        self._is_over = is_terminal(events[-1].fact)
        return events

    def begin_with(self, past: Iterator[Event]) -> None:
        """For the stream alone: these come before all that waits."""
        self._past = past
        self._wakeup.set()

    def put(self, event: Event) -> None:
        """For the stream alone: one more event waits."""
        self._backlog.put(event)
        self._wakeup.set()


class EventStream:
    """The one writer's end: numbers facts and hands them to every reader, at once and unawaited."""

    def __init__(
        self,
        clock: Callable[[], float],
        tap: Callable[[Event], None] | None = None,
        mask: Callable[[Fact], Fact] | None = None,
        archive: Archive | None = None,
    ) -> None:
        """tap: is handed every event at once, one by one. mask: what of a fact may be told.

        archive: has what was handed out, sooner or later.
        """
        self._clock = clock
        self._tap = tap
        self._mask = mask
        self._start_s = clock()
        self._num_events = 0
        self._held: list[Fact] | None = None
        self._archive = archive
        self._num_let_go = 0
        self._lets_go_at = _MOST_KEPT
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

    def go_on(self, next_seq: int, elapsed_s: float) -> None:
        """Begin with what earlier processes have told; numbers and times go on behind it."""
        assert self._num_events == 0, "a stream goes on before its first event"
        self._num_events = self._num_let_go = next_seq
        self._start_s = self._clock() - elapsed_s
        for reader in self._readers:
            reader.begin_with(self._past([]))

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
        told = fact if self._mask is None else self._mask(fact)
        return Event(self._num_events, self.elapsed_s, told)

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
        if self._archive is not None and len(self._history.entries) > self._lets_go_at:
            self._let_go(self._archive)
        for reader in self._readers:
            reader.put(event)

    def reader(self, *, max_waiting: int = MAX_WAITING) -> EventReader:
        """A new reader, which gets the run from its first event."""
        history = self._history.events()
        recent = [event for event in history if event.seq >= self._num_let_go]
        reader = EventReader(recent, max_waiting)
        if self._num_let_go:
            reader.begin_with(self._past(history[: len(history) - len(recent)]))
        self._readers.append(reader)
        return reader

    def _past(self, kept: Sequence[Event]) -> Iterator[Event]:
        """What was let go, and among it what was kept: each number once, in order."""
        assert self._archive is not None, "only what is archived is let go"
        last = -1
        for event in merge(kept, self._archive.events(self._num_let_go), key=_number):
            if event.seq != last:
                yield event
            last = event.seq

    def _let_go(self, archive: Archive) -> None:
        """Keep the newer half, and of the older one what is archived nowhere and not over."""
        backlog = self._history
        middle = len(backlog.entries) // 2
        older, newer = backlog.entries[:middle], backlog.entries[middle:]
        end = min(archive.num_kept, newer[0].seq)
        kept = [entry for entry in older if entry.seq >= end or _is_needed(entry, backlog)]
        self._num_let_go = max(self._num_let_go, end)
        backlog.entries = kept + newer
        # Where little could go, do not look again at every event.
        self._lets_go_at = max(_MOST_KEPT, 2 * len(backlog.entries))


def _is_needed(entry: Event | JoinedText, backlog: _Backlog) -> bool:
    """Whether an archive may lack it, and it is still of use."""
    if isinstance(entry, JoinedText):
        return backlog.texts.get(entry.path) is entry
    return isinstance(entry.fact, StepAsked)


def _number(event: Event) -> int:
    return event.seq


def _page_of(events: Iterator[Event]) -> list[Event]:
    return list(islice(events, _PAGE))


def is_terminal(fact: Fact) -> bool:
    """Whether a stream ends with this fact."""
    return isinstance(fact, RunFinished | RunFailed | RunCancelled)
