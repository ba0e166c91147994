"""What a verb decides, and what it may ask for.

A verb is a set of pure rules over its own memory (a frozen value): it never touches the state of a
run, it answers with actions and `core` carries them into the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from flowforge.language.program import Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.backends.protocol import FinishReason, GenerateRequest, GenerationDone, Usage
    from flowforge.language.program import Block, JsonValue

    Validator: TypeAlias = Callable[[str, Mapping[str, JsonValue]], JsonValue]
    """Parses an answer and validates it under a JSON Schema; raises a FlowForgeError."""

VerbT = TypeVar("VerbT", bound=Verb, contravariant=True)


@dataclass(frozen=True, slots=True)
class Generate:
    """Let a model write: continue the conversation of `continues`, or open one with `system`."""

    continues: str | None
    system: str | None
    user: str | None
    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class OpenBranch:
    """Run the verb's block once more. variables: what the block sees beside the outer names."""

    index: int
    variables: Mapping[str, JsonValue]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """The step has its value."""

    value: JsonValue
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


Action: TypeAlias = Generate | OpenBranch | Finish


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a verb remembers from now on, and what it asks for, in order."""

    memory: object
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a verb may look at when it starts.

    path: of the step instance. scope: names to values. validate: for answers under a JSON Schema.
    """

    path: str
    scope: Mapping[str, JsonValue]
    validate: Validator


class VerbRules(Protocol, Generic[VerbT]):
    """The decisions of one verb. Any may raise FlowForgeError: then the step fails with it."""

    word: str

    def body(self, verb: VerbT) -> Block | None:
        """The block the verb runs, if it has one."""
        ...

    def continues(self, verb: VerbT) -> frozenset[str]:
        """Names of the steps whose conversation the verb itself continues."""
        ...

    def start(self, verb: VerbT, context: StepContext) -> Reaction:
        """The step's needs have values."""
        ...

    def answered(self, verb: VerbT, context: StepContext, done: GenerationDone) -> Reaction:
        """A `Generate` of this step is done."""
        ...

    def branch_done(
        self, verb: VerbT, memory: object, branch_values: Mapping[int, JsonValue]
    ) -> Reaction:
        """One more branch has its value. branch_values: all so far, by branch index."""
        ...
