"""Runs as a log: one line for each event that somebody who operates them may want to find.

Lines say what happened to which step of which run, how long it took and what it cost. What was
said and what came of it, prompts, inputs, results and texts, is left out unless it is asked for.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.runtime.event_json import fact_as_json, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.language.program import JsonValue
    from flowforge.runtime.events import Event

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

_ORDER: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")
_LEVELS: Mapping[str, LogLevel] = {
    "run_started": "info",
    "run_resumed": "info",
    "run_finished": "info",
    "run_cancelled": "warning",
    "run_failed": "error",
    "step_asked": "info",
    "step_finished": "info",
    "step_skipped": "info",
    "step_cancelled": "info",
    "step_retried": "warning",
    "step_caught": "warning",
    "step_failed": "error",
}
"""Of what is not here: debug."""

_VALUES = frozenset(
    {"inputs", "outputs", "value", "prompt", "parts", "choices", "show", "arguments", "result"}
)
_UNLOGGED_KINDS = frozenset({"step_text", "step_part", "pages_sampled"})
_UNLOGGED_FIELDS = frozenset({"path", "failures", "accounting", "usage", "help", "models"})
_STEP_ENDS = ("step_finished", "step_failed", "step_retried", "step_caught", "step_cancelled")


class RunLog:
    """Writes lines about any number of runs.

    write: takes a line without its end. level: of the least important lines. with_values: whether
    what was said and given is in them. now: seconds since 1970.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        now: Callable[[], float],
        *,
        format: LogFormat = "text",
        level: LogLevel = "info",
        with_values: bool = False,
    ) -> None:
        self._write = write
        self._now = now
        self._format = format
        self._levels = frozenset(_ORDER[_ORDER.index(level) :])
        self._with_values = with_values
        self._started: dict[tuple[str | None, str], float] = {}

    def take(self, event: Event, run_id: str | None) -> None:
        """Log an event, if it is one to log. run_id: None for a run without a journal."""
        kind = kind_of(event.fact)
        if kind in _UNLOGGED_KINDS:
            return
        told = fact_as_json(event.fact)
        path = told.get("path")
        fields = self._fields(told)
        if isinstance(path, str):
            fields |= self._duration(kind, (run_id, path), event.time_s)
        level = _LEVELS.get(kind, "debug")
        if level not in self._levels:
            return
        moment = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        head: dict[str, JsonValue] = {
            "time": moment.replace("+00:00", "Z"),
            "level": level,
            "run": run_id,
            "step": path,
            "event": kind,
        }
        line = {name: value for name, value in (head | fields).items() if value is not None}
        self._write(_as_json(line) if self._format == "json" else _as_text(line))

    def _fields(self, told: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        left_out = _UNLOGGED_FIELDS if self._with_values else _UNLOGGED_FIELDS | _VALUES
        fields = {name: value for name, value in told.items() if name not in left_out}
        for spent in (told.get("usage"), told.get("accounting")):
            if isinstance(spent, dict):
                fields |= {
                    name: round(value, 3) if isinstance(value, float) else value
                    for name, value in spent.items()
                    if name.endswith("_tokens") or name == "duration_s"
                }
        failures = told.get("failures")
        if failures is not None:
            fields["failures"] = _paths_of(failures)
        return fields

    def _duration(
        self, kind: str, step: tuple[str | None, str], time_s: float
    ) -> dict[str, JsonValue]:
        if kind == "step_started":
            self._started[step] = time_s
        elif kind in _STEP_ENDS and step in self._started:
            return {"duration_s": round(time_s - self._started.pop(step), 3)}
        return {}


def _paths_of(failures: JsonValue) -> list[JsonValue]:
    told = failures if isinstance(failures, list) else []
    return [f"{one['path']} [{one['code']}]" for one in told if isinstance(one, dict)]


def _as_json(line: Mapping[str, JsonValue]) -> str:
    return json.dumps(line, ensure_ascii=False)


def _as_text(line: Mapping[str, JsonValue]) -> str:
    """`TIME LEVEL event name=value …`; texts with spaces in them are written as JSON."""
    head = f"{line['time']} {str(line['level']).upper():7} {line['event']}"
    rest = (
        f"{name}={_shown(value)}"
        for name, value in line.items()
        if name not in ("time", "level", "event")
    )
    return " ".join([head, *rest])


def _shown(value: JsonValue) -> str:
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "='):
        return value
    return json.dumps(value, ensure_ascii=False)
