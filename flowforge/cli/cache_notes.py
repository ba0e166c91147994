"""What the step cache had for the steps of runs, in lines."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flowforge.runtime.caching import CacheNote


class CacheTally:
    """Counts steps that had a result in the cache, of one run or of many."""

    def __init__(self, *, explains: bool) -> None:
        """explains: whether each step is told of, and if there was no result, what differs."""
        self._explains = explains
        self._num_steps = 0
        self._num_hits = 0

    def take(self, notes: Iterable[CacheNote], run: str = "") -> Iterator[str]:
        """The notes of a run, as lines. run: how it is called, where there are several.

        By step and not as they came, so that equal runs say the same.
        """
        is_hit: dict[str, bool] = {}
        for note in sorted(notes, key=attrgetter("path")):
            # A step of several turns is from the cache if all of them are.
            is_hit[note.path] = is_hit.get(note.path, True) and note.is_hit
            if self._explains:
                yield f"{run}: {note}" if run else str(note)
        self._num_steps += len(is_hit)
        self._num_hits += sum(is_hit.values())

    def summary(self) -> Iterator[str]:
        """How many there were, if any step is cached."""
        if self._num_steps:
            yield f"{self._num_hits:,} of {self._num_steps:,} cached steps from the cache"
