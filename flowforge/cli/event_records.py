"""Events as `--json` prints them: the first says where the run is, the last how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.control.orders import socket_path
from flowforge.runtime.event_json import event_as_json
from flowforge.runtime.events import RunCancelled, RunFailed, RunFinished, RunStarted

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.language.program import JsonValue
    from flowforge.runtime.events import Event

INTERRUPTED: dict[str, JsonValue] = {"event": "run_interrupted", "status": "interrupted"}
"""Told behind the last event of a run whose process ended before it."""


def event_record(event: Event, place: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The event as a JSON object. place: of its run, see `place_of`."""
    record = event_as_json(event)
    match event.fact:
        case RunStarted():
            return {**record, **place}
        case RunFinished():
            return {**record, "status": "done"}
        case RunFailed():
            return {**record, "status": "failed"}
        case RunCancelled():
            return {**record, "status": "cancelled"}
        case _:
            return record


def place_of(journal: Path, run_id: str, pid: int | None) -> dict[str, JsonValue]:
    """Where a run is. pid: of the process that has it; None where none does, and nobody listens."""
    place: dict[str, JsonValue] = {"run_id": run_id, "journal": str(journal)}
    if pid is None:
        return place
    return {**place, "pid": pid, "socket": str(socket_path(journal, run_id))}
