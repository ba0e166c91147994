"""Group commit: whatever tasks want to have on the disk at one time costs one sync."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from flowforge.journal.failpoints import reach
from flowforge.journal.step_cache import Flights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.journal.journal import Journal
    from flowforge.journal.records import Entry, Partial


@dataclass(slots=True, eq=False)
class _Batch:
    """Entries that are committed together. error: why they were not."""

    entries: list[tuple[str, Sequence[Entry]]] = field(
        default_factory=list["tuple[str, Sequence[Entry]]"]
    )
    is_over: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None


class JournalWriter:
    """Writes the entries of any number of runs of one event loop to one journal.

    While one commit is under way, what comes in waits and is the next one. Bounded by the runs,
    each of which waits for its own. num_commits: so far, for statistics and tests. flights: equal
    cached works of these runs.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.num_commits: int = 0
        self.flights: Flights = Flights()
        self._waiting = _Batch()
        self._is_writing = False

    async def commit(self, run_id: str, entries: Sequence[Entry]) -> None:
        """Return when the entries are on the disk; not cancelled half-way. Raises EngineError."""
        batch = self._waiting
        batch.entries.append((run_id, entries))
        with anyio.CancelScope(shield=True):
            if self._is_writing:
                await batch.is_over.wait()
            else:
                await self._write_until(batch)
        if batch.error is not None:
            raise batch.error

    async def keep_partials(self, run_id: str, partials: Sequence[Partial]) -> None:
        """Take down what models have written so far. Raises EngineError."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.journal.write_partials, run_id, partials)
        reach("partials")

    async def _write_until(self, wanted: _Batch) -> None:
        self._is_writing = True
        try:
            while not wanted.is_over.is_set() or self._waiting.entries:
                batch, self._waiting = self._waiting, _Batch()
                try:
                    await anyio.to_thread.run_sync(self._write, batch)
                except Exception as error:
                    batch.error = error
                batch.is_over.set()
        finally:
            self._is_writing = False

    def _write(self, batch: _Batch) -> None:
        reach("before-commit")
        self.journal.write(batch.entries)
        self.num_commits += 1
        reach("after-commit")
