"""The rows of a journal: what a run is, and what happened in it.

A *work* is what a run does outside of its own decisions: a generation, a tool call, a question, a
time that has come, an order, what a race of branches came to. It is named by its path, which holds
item and attempt as in `explore[1]/draft#2`, and by its turn: a step may let a model write several
times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue

RunStatus = Literal["running", "done", "failed", "cancelled"]
WorkKind = Literal["generation", "call", "question", "timer", "order", "join"]
WorkStatus = Literal["done", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class RunBegun:
    """A run as it was begun. target: what `flowforge run` was given, absolute.

    inputs: complete. definitions: the hash of each step's definition by static path, see
    `runtime.definitions`. options: what the run must be resumed with, for example its model.
    created_at: seconds since 1970.
    """

    workflow: str
    target: str
    inputs: Mapping[str, JsonValue]
    seed: int
    definitions: Mapping[str, str]
    options: Mapping[str, JsonValue]
    created_at: float


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the journal has it. outcome: outputs, or failures; None before the end."""

    run_id: str
    begun: RunBegun
    status: RunStatus
    ended_at: float | None
    num_resumes: int
    outcome: JsonValue


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A line of a list of runs."""

    run_id: str
    workflow: str
    target: str
    status: RunStatus
    created_at: float
    ended_at: float | None
    num_resumes: int


@dataclass(frozen=True, slots=True)
class WorkStarted:
    """A work may be under way from now on.

    request: all that it was asked with. key: a hash of what of that decides its result.
    """

    path: str
    turn: int
    kind: WorkKind
    key: str
    request: JsonValue
    at: float


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """A work came to its end. tokens: ids that a model wrote, where they are known."""

    path: str
    turn: int
    kind: WorkKind
    status: WorkStatus
    result: JsonValue
    tokens: tuple[int, ...] | None
    at: float


@dataclass(frozen=True, slots=True)
class Told:
    """An event of the run. fact: its fields as JSON."""

    seq: int
    time_s: float
    kind: str
    path: str | None
    fact: JsonValue


@dataclass(frozen=True, slots=True)
class Untold:
    """Events that a resumed run takes back: they told of what is done again."""

    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run goes on in another process. definitions: those of its workflow now."""

    definitions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over. outcome: its outputs, or its failures."""

    status: RunStatus
    outcome: JsonValue
    at: float


Entry: TypeAlias = WorkStarted | WorkEnded | Told | Untold | Resumed | RunEnded


@dataclass(frozen=True, slots=True)
class Partial:
    """What a model has written so far, while it writes."""

    path: str
    turn: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkRow:
    """A work as the journal has it. ended_idx: its place among the ends of the run, from 0.

    num_starts: above 1 where it was cut by the end of a process. status: None before its end.
    """

    path: str
    turn: int
    kind: WorkKind
    key: str
    request: JsonValue
    num_starts: int
    started_at: float
    ended_idx: int | None
    ended_at: float | None
    status: WorkStatus | None
    result: JsonValue
    tokens: tuple[int, ...] | None
