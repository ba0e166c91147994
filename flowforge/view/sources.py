"""Where a viewer's events come from: a journal, beside whoever writes to it, or a recorded file.

Sources never block for long: `poll` takes what is there within its time and returns.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from flowforge.errors import WorkflowError
from flowforge.journal.lease import state_of
from flowforge.runtime.event_json import (
    VERSION,
    event_from_json,
    fact_from_json,
    is_known,
    is_readable,
)
from flowforge.runtime.events import Event
from flowforge.view.json_lines import BadLineError, JsonLines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from flowforge.backends.protocol import BackendStatistics
    from flowforge.journal.lease import Standing
    from flowforge.journal.reader import JournalReader
    from flowforge.journal.records import RunSummary
    from flowforge.language.program import JsonValue

Link = Literal["live", "recorded", "cut", "lost"]
"""live: the run goes on. recorded: it is over. cut: its process ended before it. lost: the
connection to it did."""

_STATE_TO_LINK: Mapping[Standing, Link] = {"running": "live", "interrupted": "cut"}
_EVENTS_PER_LOOK = 64
_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Batch:
    """What came since the last look.

    is_new: forget everything before; a run that was resumed takes events back. statistics: of the
    run's backend, where they are known. elapsed_s: how late in the run it is, where the run has
    said so. has_more: the time was up before all was taken.
    """

    events: tuple[Event, ...]
    link: Link
    is_new: bool = False
    statistics: BackendStatistics | None = None
    elapsed_s: float | None = None
    has_more: bool = False


class EventSource(Protocol):
    """The events of one run, as they come."""

    def poll(self, budget_s: float) -> Batch:
        """What is there, within about `budget_s` seconds. Raises FlowForgeError."""
        ...

    def close(self) -> None:
        """Let go of what is held; idempotent."""
        ...


class JournalSource:
    """A run of a journal. The journal is its opener's to close."""

    def __init__(self, journal: JournalReader, run_id: str) -> None:
        """Raises WorkflowError WF701 where there is no such run."""
        row = journal.run(run_id)
        self.run_id = row.run_id
        self._journal = journal
        self._num_resumes = row.num_resumes
        self._next = 0
        self._reading: Iterator[Event] | None = None

    def poll(self, budget_s: float) -> Batch:
        """See `EventSource`."""
        row = self._journal.run(self.run_id)
        is_new = row.num_resumes != self._num_resumes
        if is_new:
            self._num_resumes, self._next, self._reading = row.num_resumes, 0, None
        events = self._read(time.monotonic() + budget_s)
        link = _STATE_TO_LINK.get(state_of(self._journal, row), "recorded")
        return Batch(tuple(events), link, is_new, has_more=self._reading is not None)

    def close(self) -> None:
        """Nothing is held."""

    def _read(self, until: float) -> list[Event]:
        events: list[Event] = []
        if self._reading is None:
            told = self._journal.events(self.run_id, start=self._next)
            self._reading = (
                Event(one.seq, one.time_s, fact_from_json(one.kind, cast("Any", one.fact)))
                for one in told
                if is_known(one.kind)
            )
        for event in self._reading:
            events.append(event)
            self._next = event.seq + 1
            if len(events) % _EVENTS_PER_LOOK == 0 and time.monotonic() >= until:
                return events
        self._reading = None
        return events


class FileSource:
    """A file of JSON lines as `flowforge run --json` prints them, read as it grows.

    Lines of other kinds are left out.
    """

    def __init__(self, file: Path) -> None:
        """Raises WorkflowError WF711 where it cannot be read."""
        self._name = str(file)
        try:
            self._file = file.open("rb")
        except OSError as error:
            raise WorkflowError(
                "WF711", f"the events file {self._name!r} cannot be read: {error.strerror}"
            ) from error
        self._lines = JsonLines()
        self._failure: WorkflowError | None = None

    def poll(self, budget_s: float) -> Batch:
        """See `EventSource`.

        Raises WorkflowError WF711 for what is no event, once those before it are taken.
        """
        if self._failure is not None:
            raise self._failure
        until = time.monotonic() + budget_s
        events: list[Event] = []
        has_more = False
        while chunk := self._file.read(_CHUNK_BYTES):
            try:
                self._take(chunk, events)
            except WorkflowError as error:
                if not events:
                    raise
                self._failure = error
                break
            if time.monotonic() >= until:
                has_more = True
                break
        return Batch(tuple(events), "recorded", has_more=has_more)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _take(self, chunk: bytes, events: list[Event]) -> None:
        try:
            objects = self._lines.take(chunk)
        except BadLineError as error:
            for told in error.objects:
                self._add(told, events)
            raise self._no_event(error.line) from error
        for told in objects:
            self._add(told, events)

    def _add(self, told: JsonValue, events: list[Event]) -> None:
        if not isinstance(told, dict) or "seq" not in told:
            return
        if not is_readable(told):
            raise WorkflowError(
                "WF711",
                f"the events file {self._name!r} is of a newer FlowForge: it has version "
                f"{told['version']}, this one reads {VERSION}",
            )
        try:
            if is_known(told["event"]):
                events.append(event_from_json(told))
        except (ValueError, KeyError, TypeError) as error:
            raise self._no_event(json.dumps(told).encode()) from error

    def _no_event(self, line: bytes) -> WorkflowError:
        return WorkflowError(
            "WF711",
            f"the events file {self._name!r} has a line that is no event: {line[:80]!r}",
            help="it must hold what 'flowforge run --json' prints",
        )


@dataclass(frozen=True, slots=True)
class RunListing:
    """A run of a list. state: its status, or interrupted."""

    run: RunSummary
    state: str


def listings(journal: JournalReader, *, limit: int = 500) -> list[RunListing]:
    """The runs of a journal, those that go on first, then the newest."""
    found = [RunListing(run, state_of(journal, run)) for run in journal.runs(limit=limit)]
    return sorted(found, key=lambda one: one.state != "running")
