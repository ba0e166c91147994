"""The events of a run so far, and the run as it was at any of them."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from flowforge.runtime.events import Event, PagesSampled, StepPart, StepPrompted, StepText
from flowforge.runtime.joined_text import JoinedText
from flowforge.view.run_view import RunView

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_CHANGES = (StepText, StepPrompted)

_MERGE_WINDOW_S = 0.25
"""Texts of one step within this time are one place of the timeline."""


MAX_PLACES = 50_000
"""From so many on, texts and samples of pages of the older half are kept in coarser steps."""


class Timeline:
    """Grows at its end. A place is a number of events: at place 0 nothing has happened yet.

    Bounded by what steps and tools tell and by `max_places`: texts of long ago are joined, the more
    the longer the run is. Places then move: who looks at one keeps `seq_at` of it.
    """

    def __init__(self, max_places: int = MAX_PLACES) -> None:
        self._max_places = max_places
        self._coarsens_at = max_places
        self._window_s = _MERGE_WINDOW_S
        self._events: list[Event | JoinedText] = []
        self._texts: dict[str, JoinedText] = {}
        self._first_joined = 0
        self._view = RunView()
        self._view_place = 0

    def __len__(self) -> int:
        """The last place."""
        return len(self._events)

    @property
    def events(self) -> Sequence[Event]:
        """All of them; the first `place` make the run as it was there."""
        return self._whole()

    def take(self, event: Event) -> None:
        """One more event; a text may join one that came a moment before."""
        if len(self._events) >= self._coarsens_at:
            self._coarsen()
        fact = event.fact
        if isinstance(fact, StepPart):
            # Its text says it.
            return
        if not isinstance(fact, StepText):
            # Texts do not move over what is not a text.
            self._texts.clear()
            self._events.append(event)
            return
        last = self._texts.get(fact.path)
        if (
            last is not None
            and last.is_thought == fact.is_thought
            and event.time_s - last.time_s < _MERGE_WINDOW_S
        ):
            last.add(fact)
            return
        text = self._texts[fact.path] = JoinedText(event, fact)
        self._events.append(text)

    def seq_at(self, place: int) -> int:
        """The number of the last event before a place; -1 at the beginning."""
        return self._events[place - 1].seq if place > 0 else -1

    def place_behind(self, seq: int) -> int:
        """The place behind the event of a number, or behind what it has been joined to."""
        return bisect_right(self._events, seq, key=attrgetter("seq"))

    def view_at(self, place: int) -> RunView:
        """The run as it was. The same object as before, moved on, where that is possible."""
        events = self._whole()
        place = max(0, min(place, len(events)))
        if place < self._view_place:
            self._view, self._view_place = RunView(), 0
        for at in range(self._view_place, place):
            self._view.take(events[at])
        self._view_place = place
        return self._view

    def next_change(self, place: int) -> int:
        """The place behind the next event that is not a text, or the last place."""
        events = self._whole()
        for at in range(place, len(events)):
            if not isinstance(events[at].fact, _NO_CHANGES):
                return at + 1
        return len(events)

    def previous_change(self, place: int) -> int:
        """The place behind the last event before this one that is not a text, or 0."""
        events = self._whole()
        for at in range(place - 1, 0, -1):
            if not isinstance(events[at - 1].fact, _NO_CHANGES):
                return at
        return 0

    def place_at(self, time_s: float) -> int:
        """The place behind everything that had happened by a time."""
        low, high = 0, len(self._events)
        while low < high:
            middle = (low + high) // 2
            if self._events[middle].time_s <= time_s:
                low = middle + 1
            else:
                high = middle
        return low

    def _coarsen(self) -> None:
        events = self._whole()
        middle = len(events) // 2
        self._window_s *= 4
        older = _coarser(events[:middle], self._window_s)
        num_gone = middle - len(older)
        self._events = [*older, *events[middle:]]
        self._first_joined = len(self._events)
        if self._view_place >= middle:
            self._view_place -= num_gone
        else:
            self._view, self._view_place = RunView(), 0
        # Where steps tell more than texts do, little can go.
        self._coarsens_at = max(self._max_places, 2 * len(self._events) - middle)

    def _whole(self) -> list[Event]:
        """The events, of which none grows any more."""
        self._texts.clear()
        events = self._events
        for at in range(self._first_joined, len(events)):
            one = events[at]
            if isinstance(one, JoinedText):
                events[at] = one.event()
        self._first_joined = len(events)
        return cast("list[Event]", events)


def _coarser(events: Sequence[Event], window_s: float) -> list[Event]:
    """The events with texts of one step joined over `window_s`, and as many samples of pages."""
    kept: list[Event | JoinedText] = []
    texts: dict[str, JoinedText] = {}
    sampled_s = float("-inf")
    for event in events:
        fact = event.fact
        if isinstance(fact, PagesSampled):
            if event.time_s - sampled_s >= window_s:
                sampled_s = event.time_s
                kept.append(event)
            continue
        if not isinstance(fact, StepText):
            texts.clear()
            kept.append(event)
            continue
        last = texts.get(fact.path)
        is_same = last is not None and last.is_thought == fact.is_thought
        if last is not None and is_same and event.time_s - last.time_s < window_s:
            last.add(fact)
        else:
            texts[fact.path] = joined = JoinedText(event, fact)
            kept.append(joined)
    return [one.event() if isinstance(one, JoinedText) else one for one in kept]
