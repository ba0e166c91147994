"""The events of a run so far, and the run as it was at any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from flowforge.runtime.events import Event, StepPart, StepPrompted, StepText
from flowforge.runtime.joined_text import JoinedText
from flowforge.view.run_view import RunView

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_CHANGES = (StepText, StepPrompted)

_MERGE_WINDOW_S = 0.25
"""Texts of one step within this time are one place of the timeline."""


class Timeline:
    """Grows at its end. A place is a number of events: at place 0 nothing has happened yet."""

    def __init__(self) -> None:
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
