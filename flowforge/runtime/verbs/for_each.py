"""`for`: a block once per item, results in item order, at most `limit` items at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.errors import InternalError, WorkflowError
from flowforge.runtime.verbs.rules import Finish, OpenBranch, Reaction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.backends.protocol import GenerationDone
    from flowforge.language.program import Block, ForEach, JsonValue
    from flowforge.runtime.verbs.rules import StepContext


@dataclass(frozen=True, slots=True)
class ForEachMemory:
    """The items, and how many of them have been opened as branches."""

    items: tuple[JsonValue, ...]
    num_opened: int


class ForEachRules:
    """Opens items in order as room becomes free; an empty list gives [] at once."""

    word = "for"

    def body(self, verb: ForEach) -> Block | None:
        """The block under `do`."""
        return verb.body

    def continues(self, verb: ForEach) -> frozenset[str]:
        """Nothing by itself; what its block continues is counted by the graph."""
        del verb
        return frozenset()

    def start(self, verb: ForEach, context: StepContext) -> Reaction:
        """Evaluate the list and open the first items."""
        items = verb.items.evaluate(context.scope)
        if not isinstance(items, list):
            raise WorkflowError(
                "WF503",
                f"step {context.path!r} goes over {_type_word(items)}, expected a list",
                help="give 'for' a list, for example a step with json: { type: array }",
            )
        if not items:
            return Reaction(ForEachMemory((), 0), (Finish([]),))
        num_first = len(items) if verb.limit is None else min(verb.limit, len(items))
        memory = ForEachMemory(tuple(items), num_first)
        return Reaction(memory, tuple(_branch(verb, memory, idx) for idx in range(num_first)))

    def answered(self, verb: ForEach, context: StepContext, done: GenerationDone) -> Reaction:
        """Never: `for` asks no model."""
        del verb, context, done
        raise InternalError("IN502", "a for step was told of a generation it never asked for")

    def branch_done(
        self, verb: ForEach, memory: object, branch_values: Mapping[int, JsonValue]
    ) -> Reaction:
        """Open the next item, or gather the values once all are there."""
        assert isinstance(memory, ForEachMemory)
        num_items = len(memory.items)
        if len(branch_values) == num_items:
            return Reaction(memory, (Finish([branch_values[idx] for idx in range(num_items)]),))
        if memory.num_opened == num_items:
            return Reaction(memory, ())
        opened = ForEachMemory(memory.items, memory.num_opened + 1)
        return Reaction(opened, (_branch(verb, memory, memory.num_opened),))


def _branch(verb: ForEach, memory: ForEachMemory, index: int) -> OpenBranch:
    is_last = index + 1 == len(memory.items)
    return OpenBranch(index, {verb.variable: memory.items[index]}, is_last)


def _type_word(value: JsonValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
