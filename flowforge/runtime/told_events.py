"""The events that a run told before it was cut, and where they are read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from flowforge.runtime.event_json import fact_from_json, kind_of, kind_of_type
from flowforge.runtime.events import (
    Event,
    PagesSampled,
    RequestDelayed,
    RunResumed,
    ShadowEnded,
    StepPrompted,
    StepRouted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flowforge.journal.reader import JournalReader
    from flowforge.runtime.events import Fact

_UNDECIDED = frozenset(
    map(
        kind_of_type,
        (RunResumed, PagesSampled, StepPrompted, RequestDelayed, StepRouted, ShadowEnded),
    )
)
"""Told by the shell, which decides nothing."""


class ToldEvents:
    """Events by what they tell of: facts that are decided again find those that told of them.

    The events have times and numbers, the facts have what a changed workflow adds. next_seq: of the
    event behind the last one. elapsed_s: when that one was told.
    """

    def __init__(self, keys: Iterable[tuple[int, float, str, str | None]]) -> None:
        """keys: number, time, kind and path of each, in order."""
        self.next_seq: int = 0
        self.elapsed_s: float = 0.0
        self._seqs: dict[tuple[str, str | None], list[int]] = {}
        for seq, time_s, kind, path in keys:
            self.next_seq, self.elapsed_s = seq + 1, time_s
            if kind not in _UNDECIDED:
                self._seqs.setdefault((kind, path), []).append(seq)

    def take(self, fact: Fact) -> bool:
        """Whether there is an event of this fact that no other fact has found."""
        key = kind_of(fact), cast("str | None", getattr(fact, "path", None))
        seqs = self._seqs.get(key)
        if seqs is None:
            return False
        # Most things are told once.
        seqs.pop(0)
        if not seqs:
            del self._seqs[key]
        return True

    @property
    def undone(self) -> tuple[int, ...]:
        """The events whose facts were not decided again: they told of what is done anew."""
        return tuple(sorted(seq for seqs in self._seqs.values() for seq in seqs))


class EventArchive:
    """The events of one run that its journal has; a stream need not keep them.

    num_kept: events before this number are there, but for texts, which a journal does not keep.
    """

    def __init__(self, journal: JournalReader, run_id: str) -> None:
        self.num_kept: int = 0
        self._journal = journal
        self._run_id = run_id
        self._undone: frozenset[int] = frozenset()

    def go_on(self, num_kept: int, undone: Iterable[int]) -> None:
        """Take over what an earlier process told, but for some that are taken back."""
        self.num_kept = num_kept
        self._undone = frozenset(undone)

    def events(self, end: int) -> Iterator[Event]:
        """The events before number `end`, in order; read as they are asked for, blocking."""
        for told in self._journal.events(self._run_id):
            if told.seq >= end:
                return
            if told.seq not in self._undone:
                fact = fact_from_json(told.kind, cast("dict[str, Any]", told.fact))
                yield Event(told.seq, told.time_s, fact)
