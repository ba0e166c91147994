"""What a verb decides, and what it may ask for.

A verb is a set of pure rules over its own memory (a frozen value): it never touches the state of a
run, it answers with actions and `core` carries them into the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from flowforge.errors import FlowForgeError, InternalError, WorkflowError
from flowforge.language.json_values import kind_of_value
from flowforge.language.program import Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.backends.protocol import FinishReason, GenerateRequest, GenerationDone, Usage
    from flowforge.errors import Location
    from flowforge.grammars.tool_formats import ToolDefinition
    from flowforge.language.expressions import Expression
    from flowforge.language.program import JsonValue, Step, ToolSpec
    from flowforge.runtime.commands import Turn
    from flowforge.runtime.events import Fact
    from flowforge.runtime.state import Failure

    Validator: TypeAlias = Callable[[str, Mapping[str, JsonValue]], JsonValue]
    """Parses an answer and validates it under a JSON Schema; raises a FlowForgeError."""

VerbT = TypeVar("VerbT", bound=Verb)


@dataclass(frozen=True, slots=True)
class CallKey:
    """A call that a model made.

    idx: counts the calls of a step's try. name: of the tool, as the model wrote it.
    """

    idx: int
    name: str


WorkKey: TypeAlias = int | CallKey | None
"""Which work of a step: the index of a sample, a model's call, or None for the only one."""


@dataclass(frozen=True, slots=True)
class Open:
    """A conversation of its own, begun with a system text."""

    system: str | None


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork of the conversation of step `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Own:
    """The conversation that the step's main work has; a sample forks it, the main work goes on."""


Source: TypeAlias = Open | Fork | Own


@dataclass(frozen=True, slots=True)
class Generate:
    """Let a model write after the turns `said`.

    key: the index of a sample, or None. model: None for the run's own.
    """

    source: Source
    said: tuple[Turn, ...]
    request: GenerateRequest
    key: WorkKey = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Invoke:
    """Run a tool. key: of the call, where a model made it. member: which tool of a server."""

    tool: ToolSpec
    arguments: Mapping[str, JsonValue]
    key: CallKey | None = None
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell readers of the run a fact."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class Question:
    """Ask a person."""

    prompt: str
    choices: tuple[str, ...]
    show: JsonValue


@dataclass(frozen=True, slots=True)
class Wait:
    """Tell the verb when some time has passed: `VerbRules.elapsed`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class OpenBranch:
    """Run a block of the verb.

    key: names the branch in reports to the verb. segment: its part of the path, as '[2]' or
    '/then'. body: which of the verb's `bodies`. variables: what the block sees beside the outer
    names. is_last: no other branch follows. is_apart: it sees no outer names and has `tools`.
    """

    key: str
    segment: str
    body: str
    variables: Mapping[str, JsonValue]
    is_last: bool
    tools: Mapping[str, ToolSpec] | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The step has its value; what still runs for it is cancelled first.

    key: whose conversation is the step's from now on. has_conversation: False for none at all.
    """

    value: JsonValue
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    key: WorkKey = None
    has_conversation: bool = True


Action: TypeAlias = Generate | Invoke | Tell | Question | Wait | OpenBranch | Finish


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a verb remembers from now on, and what it asks for, in order."""

    memory: object
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a verb may look at.

    path: of this try of the step. scope: names to values. validate: for answers under a JSON
    Schema. seed: the run's. tools: of the program that the step belongs to. offered: what models
    are told of tools, by the place of their declaration.
    """

    path: str
    attempt: int
    scope: Mapping[str, JsonValue]
    validate: Validator
    seed: int
    tools: Mapping[str, ToolSpec]
    offered: Mapping[Location, tuple[ToolDefinition, ...]]


@dataclass(frozen=True, slots=True)
class WorkEnd:
    """How a work ended."""

    key: WorkKey
    result: GenerationDone | FlowForgeError | ReturnedValue


@dataclass(frozen=True, slots=True)
class ReturnedValue:
    """What a tool returned or a person answered."""

    value: JsonValue


@dataclass(frozen=True, slots=True)
class BranchEnd:
    """How a branch ended. scope: its names and values, complete unless something failed."""

    key: str
    path: str
    scope: Mapping[str, JsonValue]
    failures: tuple[Failure, ...]


class VerbRules(Generic[VerbT]):
    """The decisions of one verb. Any may raise FlowForgeError: then the step fails with it.

    What a verb does not override it is never asked, except where a default says otherwise.
    """

    word = ""

    def bodies(self, verb: VerbT) -> Mapping[str, Mapping[str, Step]]:
        """The steps of the verb's blocks, by key; by default there are none."""
        del verb
        return {}

    def segment(self, verb: VerbT, body: str) -> str:
        """The part of the path of a body's steps that is the same for every item and round."""
        del verb, body
        return ""

    def continues(self, verb: VerbT) -> frozenset[str]:
        """Names of the steps whose conversation the verb itself continues; by default none."""
        del verb
        return frozenset()

    def fails_fast(self, verb: VerbT) -> bool:
        """Whether one failed branch fails the step; by default it does."""
        del verb
        return True

    def start(self, verb: VerbT, context: StepContext) -> Reaction:
        """The step's needs have values."""
        raise NotImplementedError

    def work_ended(
        self, verb: VerbT, context: StepContext, memory: object, end: WorkEnd
    ) -> Reaction:
        """A work of this step has ended."""
        raise self._unexpected("a work")

    def branch_ended(
        self, verb: VerbT, context: StepContext, memory: object, end: BranchEnd
    ) -> Reaction:
        """A branch has ended; with failures only if the verb does not fail fast."""
        raise self._unexpected("a branch")

    def elapsed(self, verb: VerbT, context: StepContext, memory: object) -> Reaction:
        """The time of the verb's `Wait` has come."""
        raise self._unexpected("a wait")

    def _unexpected(self, what: str) -> InternalError:
        return InternalError("IN502", f"a {self.word} step was told of {what} it never asked for")


def holds(condition: Expression, scope: Mapping[str, JsonValue]) -> bool:
    """Whether a condition is true. Raises WorkflowError WF505 for what is no boolean."""
    value = condition.evaluate(scope)
    if not isinstance(value, bool):
        raise WorkflowError(
            "WF505",
            f"a condition is {kind_of_value(value)}, expected true or false",
            location=condition.location,
            help="compare it with something, for example ${ x == 1 } or ${ x != null }",
        )
    return value
