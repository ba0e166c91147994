"""What a run knows: scopes, step instances, who holds a conversation, what went wrong.

One `RunState` belongs to one run and is changed by `core.advance` alone; everybody else sees
events. A step instance moves through `TRANSITIONS` and no other way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.errors import FlowForgeError, InternalError
from flowforge.language.token_meter import MeasuredScope
from flowforge.runtime.policy import WHOLE_POLICY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.errors import Location
    from flowforge.grammars.tool_formats import ToolDefinition
    from flowforge.language.program import JsonValue, Program, ToolSpec
    from flowforge.language.token_meter import TokenMeter
    from flowforge.runtime.commands import ExpectPrompt, ExpectUse
    from flowforge.runtime.graph import BlockGraph, StepNode
    from flowforge.runtime.policy import RunPolicy
    from flowforge.runtime.verbs.rules import Finish, Validator, WorkKey


class Status(StrEnum):
    """Where a step instance stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


Move: TypeAlias = Literal["start", "skip", "finish", "fail", "cancel"]

TRANSITIONS: Mapping[tuple[Status, Move], Status] = {
    (Status.WAITING, "start"): Status.RUNNING,
    (Status.WAITING, "skip"): Status.FINISHED,
    (Status.WAITING, "cancel"): Status.CANCELLED,
    (Status.RUNNING, "finish"): Status.FINISHED,
    (Status.RUNNING, "fail"): Status.FAILED,
    (Status.RUNNING, "cancel"): Status.CANCELLED,
}


class Stage(StrEnum):
    """What a running step is at: a try, the wait before the next, its `catch`, its `finally`."""

    TRY = "try"
    BACKOFF = "backoff"
    CATCH = "catch"
    FINALLY = "finally"


class Phase(StrEnum):
    """Where the run stands."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed step instance and why."""

    path: str
    error: FlowForgeError


@dataclass(frozen=True, slots=True)
class Fails:
    """A step's verdict. error: its own; None where the failures of its branches say it all."""

    error: FlowForgeError | None = None


@dataclass(frozen=True, slots=True)
class Cancels:
    """A step's verdict: somebody outside wants it gone."""


Verdict: TypeAlias = "Finish | Fails | Cancels"


@dataclass(slots=True, eq=False)
class StepState:
    """One step instance.

    num_awaited: siblings whose value it still waits for. attempt: the number of its try, from 1.
    works, scopes: what runs for it. verdict: what it comes to once nothing runs for it any more.
    failures: of branches of this try. pending: the verdict that its `finally` delays.
    conversations: open ones of its works. conversation: the one that may be continued.
    num_claims: instances that may still fork its conversation. has_claims: whether it may itself
    still fork those it continues. num_forking: forks on their way. use_told: when
    the conversation is continued, as the backend was last told. foreseen: works of branches
    to come that were told of, and have not started yet. is_prepared: whether its prompt was told
    of before its time. prompt_told: what was told last of when it will be asked.
    """

    path: str
    node: StepNode
    scope: ScopeState
    num_awaited: int
    status: Status = Status.WAITING
    stage: Stage = Stage.TRY
    attempt: int = 0
    memory: object = None
    works: set[str] = field(default_factory=set[str])
    scopes: dict[str, ScopeState] = field(default_factory=dict["str", "ScopeState"])
    timers: set[str] = field(default_factory=set[str])
    verdict: Verdict | None = None
    pending: Verdict | None = None
    is_cancelled: bool = False
    failures: list[Failure] = field(default_factory=list[Failure])
    conversations: set[str] = field(default_factory=set[str])
    conversation: str | None = None
    num_claims: int = 0
    has_claims: bool = True
    num_forking: int = 0
    use_told: ExpectUse | None = None
    foreseen: set[str] = field(default_factory=set[str])
    is_prepared: bool = False
    prompt_told: ExpectPrompt | None = None
    value: JsonValue = None

    @property
    def attempt_path(self) -> str:
        """The path of this try: `draft`, then `draft#2`."""
        return self.path if self.attempt <= 1 else f"{self.path}#{self.attempt}"

    @property
    def is_busy(self) -> bool:
        """Whether something still runs for it."""
        return bool(self.works or self.scopes)

    @property
    def may_fork_again(self) -> bool:
        """Whether a later stage may fork what this try has forked."""
        step = self.node.step
        return step.retry is not None or step.catch is not None or step.finally_block is not None

    def move(self, move: Move) -> None:
        """Change the status as the table says."""
        status = TRANSITIONS.get((self.status, move))
        if status is None:
            raise InternalError(
                "IN501", f"step {self.path!r} is {self.status} and was told to {move}"
            )
        self.status = status


@dataclass(slots=True, eq=False)
class ScopeState(MeasuredScope):
    """One lexical scope: a whole program, or one branch of a step. As a mapping: names to values.

    outer: None for a program, which sees no names but its own. owner: the step whose branch this
    is; None at the top. variables: loop variables and the like, and `inputs` of a program.
    tools: of the program that the scope belongs to. meter: counts tokens for expressions.
    keepers: steps whose conversation is kept for others. is_stopping: nothing new starts in it.
    """

    key: str
    prefix: str
    graph: BlockGraph
    variables: Mapping[str, JsonValue]
    tools: Mapping[str, ToolSpec]
    meter: TokenMeter | None
    outer: ScopeState | None = None
    owner: StepState | None = None
    steps: dict[str, StepState] = field(default_factory=dict["str", "StepState"])
    num_unfinished: int = 0
    num_running: int = 0
    keepers: dict[StepState, None] = field(default_factory=dict["StepState", "None"])
    is_stopping: bool = False
    is_closed: bool = False
    failures: list[Failure] = field(default_factory=list[Failure])

    @property
    def num_following(self) -> int:
        """Tokens that may be written after it, in the longest chain of steps around it."""
        owner = self.owner
        return 0 if owner is None else owner.scope.num_following + owner.node.num_following

    @property
    def token_meter(self) -> TokenMeter | None:
        """Counts tokens for expressions."""
        return self.meter

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

    @property
    def is_over(self) -> bool:
        """Whether nothing runs in it and nothing will."""
        return self.num_running == 0 and (self.is_stopping or self.num_unfinished == 0)

    def find_step(self, name: str) -> StepState:
        """The instance a name means here."""
        scope: ScopeState | None = self
        while scope is not None:
            if name in scope.steps:
                return scope.steps[name]
            scope = scope.outer
        raise InternalError("IN503", f"no step {name!r} is in scope at {self.prefix!r}")


@dataclass(frozen=True, slots=True)
class Work:
    """What runs in the shell: for which step, as which of its works.

    error: what it comes to once it is stopped, where an order wants it alone gone.
    """

    step: StepState
    key: WorkKey
    error: FlowForgeError | None = None


TimerPurpose: TypeAlias = Literal["timeout", "backoff", "wait", "finally"]


@dataclass(frozen=True, slots=True)
class Timer:
    """What is to be done for a step when a time has come."""

    step: StepState
    purpose: TimerPurpose


@dataclass(slots=True, eq=False)
class RunState:
    """All of a run.

    seed: what every random choice of the run is derived from. meter: counts tokens for expressions.
    offered: what models are told of the tools, by the place of their declaration. policy: what is
    made of what is known.
    top: the program's own scope, once begun. steps: the instances of open scopes, by path. works,
    timers: what is in flight, by path of the work and by timer. num_queued: steps that were ready
    so far, to start them in order.
    """

    program: Program
    graph: BlockGraph
    inputs: Mapping[str, JsonValue]
    validate: Validator
    seed: int
    meter: TokenMeter | None = None
    offered: Mapping[Location, tuple[ToolDefinition, ...]] = field(
        default_factory=dict["Location", "tuple[ToolDefinition, ...]"]
    )
    policy: RunPolicy = WHOLE_POLICY
    phase: Phase = Phase.RUNNING
    top: ScopeState | None = None
    steps: dict[str, StepState] = field(default_factory=dict["str", "StepState"])
    works: dict[str, Work] = field(default_factory=dict["str", "Work"])
    timers: dict[str, Timer] = field(default_factory=dict["str", "Timer"])
    ready: list[tuple[int, int, StepState]] = field(
        default_factory=list["tuple[int, int, StepState]"]
    )
    num_queued: int = 0

    @property
    def open_paths(self) -> tuple[str, ...]:
        """Conversations that are open, by path; nothing after a run."""
        return tuple(path for step in self.steps.values() for path in sorted(step.conversations))
