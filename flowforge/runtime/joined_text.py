"""Texts of one step that wait as one event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.runtime.events import Event, StepFinished, StepText

if TYPE_CHECKING:
    from flowforge.runtime.events import Fact


class JoinedText:
    """Numbered and timed as the first of them.

    Thoughts and what the step answers are never in one.
    """

    __slots__ = ("is_thought", "num_tokens", "parts", "path", "seq", "time_s")

    def __init__(self, event: Event, fact: StepText) -> None:
        """fact: of the event."""
        self.seq = event.seq
        self.time_s = event.time_s
        self.path = fact.path
        self.num_tokens = fact.num_tokens
        self.parts = [fact.text]
        self.is_thought = fact.is_thought

    def add(self, fact: StepText) -> None:
        """One more text of the step, of the same kind."""
        self.parts.append(fact.text)
        self.num_tokens += fact.num_tokens

    def close(self, end: Fact) -> None:
        """No text follows: keep it in one piece, which is the step's value where they are equal."""
        whole = "".join(self.parts)
        value = end.value if isinstance(end, StepFinished) else None
        self.parts = [value if isinstance(value, str) and value == whole else whole]

    def event(self) -> Event:
        """The texts so far as one event."""
        text = "".join(self.parts)
        fact = StepText(self.path, text, self.num_tokens, self.is_thought)
        return Event(self.seq, self.time_s, fact)
