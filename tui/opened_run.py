"""A run that a viewer has open: its events, its journal, and the way to act on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.control.detaching import Detached, NotBegun
    from flowforge.journal.reader import JournalReader
    from flowforge.journal.records import WorkRow
    from flowforge.view.control import RunControl
    from flowforge.view.sources import EventSource


@dataclass(slots=True)
class OpenedRun:
    """name: the run's id, or what else it is called by. control: None where it can only be watched.

    journal: belongs to whoever opened it; None where the run is in none. begin: carries a command
    of `flowforge` out on this journal in the background; blocks until its run has begun. begun_at:
    Unix time; None where the run's own time is not counted from there.
    """

    name: str
    source: EventSource
    journal: JournalReader | None = None
    control: RunControl | None = None
    begin: Callable[[Sequence[str]], Detached | NotBegun] | None = None
    begun_at: float | None = None

    def works_at(self, path: str) -> Sequence[WorkRow]:
        """What the journal has of a path. Raises FlowForgeError."""
        return () if self.journal is None else self.journal.works_at(self.name, path)

    def close(self) -> None:
        """Let go of the events; the run goes on."""
        self.source.close()
