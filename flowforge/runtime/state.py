"""What a run knows: scopes, step instances, who holds a conversation, what went wrong.

One `RunState` belongs to one run and is changed by `core.advance` alone; everybody else sees
events. A step instance moves through `TRANSITIONS` and no other way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.errors import FlowForgeError, InternalError

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.graph import BlockGraph, StepNode
    from flowforge.runtime.verbs.rules import Validator


class Status(StrEnum):
    """Where a step instance stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


Move: TypeAlias = Literal["start", "finish", "fail", "cancel"]

TRANSITIONS: Mapping[tuple[Status, Move], Status] = {
    (Status.WAITING, "start"): Status.RUNNING,
    (Status.WAITING, "cancel"): Status.CANCELLED,
    (Status.RUNNING, "finish"): Status.FINISHED,
    (Status.RUNNING, "fail"): Status.FAILED,
    (Status.RUNNING, "cancel"): Status.CANCELLED,
}


class Phase(StrEnum):
    """Where the run stands: in `failing` and `cancelling` nothing new starts."""

    RUNNING = "running"
    FAILING = "failing"
    CANCELLING = "cancelling"
    ENDED = "ended"


class Hold(StrEnum):
    """Whether a step instance has a conversation open."""

    NONE = "none"
    OPEN = "open"
    RELEASED = "released"


@dataclass(slots=True, eq=False)
class StepState:
    """One step instance.

    num_awaited: siblings whose value it still waits for. num_claims: instances that may still fork
    its conversation. has_claims: whether it may itself still fork the ones it continues.
    branch_values: values of the branches that are done, by branch index.
    """

    path: str
    node: StepNode
    scope: ScopeState
    num_awaited: int
    status: Status = Status.WAITING
    hold: Hold = Hold.NONE
    num_claims: int = 0
    has_claims: bool = True
    memory: object = None
    branch_values: dict[int, JsonValue] = field(default_factory=dict["int", "JsonValue"])
    value: JsonValue = None

    def move(self, move: Move) -> None:
        """Change the status as the table says."""
        status = TRANSITIONS.get((self.status, move))
        if status is None:
            raise InternalError(
                "IN501", f"step {self.path!r} is {self.status} and was told to {move}"
            )
        self.status = status


@dataclass(slots=True, eq=False)
class ScopeState(Mapping[str, "JsonValue"]):
    """One lexical scope: the whole program, or one branch of a step. As a mapping: names to values.

    owner: the step whose branch this is; None for the program. variables: loop variables, and
    `inputs` at the top.
    """

    prefix: str
    graph: BlockGraph
    variables: Mapping[str, JsonValue]
    outer: ScopeState | None = None
    owner: StepState | None = None
    index: int = 0
    steps: dict[str, StepState] = field(default_factory=dict["str", "StepState"])
    num_unfinished: int = 0

    def __getitem__(self, name: str) -> JsonValue:
        """The value of a name here or in an outer scope; KeyError while a step has none."""
        if name in self.variables:
            return self.variables[name]
        step = self.steps.get(name)
        if step is not None and step.status is Status.FINISHED:
            return step.value
        if self.outer is None:
            raise KeyError(name)
        return self.outer[name]

    def __iter__(self) -> Iterator[str]:
        """Every name that has a value, inner scopes first, each once."""
        own = [*self.variables, *(s for s, v in self.steps.items() if v.status is Status.FINISHED)]
        yield from own
        if self.outer is not None:
            yield from (name for name in self.outer if name not in own)

    def __len__(self) -> int:
        """How many names have a value."""
        return sum(1 for _ in self)

    def find_step(self, name: str) -> StepState:
        """The instance a name means here."""
        scope: ScopeState | None = self
        while scope is not None:
            if name in scope.steps:
                return scope.steps[name]
            scope = scope.outer
        raise InternalError("IN503", f"no step {name!r} is in scope at {self.prefix!r}")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed step instance and why."""

    path: str
    error: FlowForgeError


@dataclass(slots=True, eq=False)
class RunState:
    """All of a run.

    top: the program's own scope, once begun. steps: the instances of open scopes, by path.
    in_flight: paths that generate.
    """

    program: Program
    graph: BlockGraph
    inputs: Mapping[str, JsonValue]
    validate: Validator
    phase: Phase = Phase.RUNNING
    top: ScopeState | None = None
    steps: dict[str, StepState] = field(default_factory=dict["str", "StepState"])
    in_flight: set[str] = field(default_factory=set["str"])
    failures: list[Failure] = field(default_factory=list["Failure"])

    @property
    def open_paths(self) -> tuple[str, ...]:
        """Paths of the instances whose conversation is open; nothing after a run."""
        return tuple(path for path, step in self.steps.items() if step.hold is Hold.OPEN)
