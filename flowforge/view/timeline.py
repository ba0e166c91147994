"""The events of a run so far, and the run as it was at any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.runtime.events import Event, StepText
from flowforge.view.run_view import RunView

if TYPE_CHECKING:
    from collections.abc import Sequence

_MERGE_WINDOW_S = 0.25
"""Texts of one step within this time are one place of the timeline."""


class Timeline:
    """Grows at its end. A place is a number of events: at place 0 nothing has happened yet."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._texts: dict[str, int] = {}
        self._view = RunView()
        self._view_place = 0

    def __len__(self) -> int:
        """The last place."""
        return len(self._events)

    @property
    def events(self) -> Sequence[Event]:
        """All of them; the first `place` make the run as it was there."""
        return self._events

    def take(self, event: Event) -> None:
        """One more event; a text may join one that came a moment before."""
        fact = event.fact
        if not isinstance(fact, StepText):
            # Texts do not move over what is not a text.
            self._texts.clear()
            self._events.append(event)
            return
        idx = self._texts.get(fact.path)
        if idx is not None and idx >= self._view_place:
            first = self._events[idx]
            assert isinstance(first.fact, StepText)
            is_same = first.fact.is_thought == fact.is_thought
            if is_same and event.time_s - first.time_s < _MERGE_WINDOW_S:
                text = first.fact.text + fact.text
                num_tokens = first.fact.num_tokens + fact.num_tokens
                joined = StepText(fact.path, text, num_tokens, fact.is_thought)
                self._events[idx] = Event(first.seq, first.time_s, joined)
                return
        self._texts[fact.path] = len(self._events)
        self._events.append(event)

    def view_at(self, place: int) -> RunView:
        """The run as it was. The same object as before, moved on, where that is possible."""
        place = max(0, min(place, len(self._events)))
        if place < self._view_place:
            self._view, self._view_place = RunView(), 0
        for event in self._events[self._view_place : place]:
            self._view.take(event)
        self._view_place = place
        return self._view

    def next_change(self, place: int) -> int:
        """The place behind the next event that is not a text, or the last place."""
        for at in range(place, len(self._events)):
            if not isinstance(self._events[at].fact, StepText):
                return at + 1
        return len(self._events)

    def previous_change(self, place: int) -> int:
        """The place behind the last event before this one that is not a text, or 0."""
        for at in range(place - 1, 0, -1):
            if not isinstance(self._events[at - 1].fact, StepText):
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
