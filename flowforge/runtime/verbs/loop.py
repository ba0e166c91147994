"""`loop`: a block again and again, with values carried from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.language.program import Loop
from flowforge.runtime.layers import Layered
from flowforge.runtime.verbs.rules import Finish, OpenBranch, Reaction, VerbRules, holds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue, Step
    from flowforge.runtime.verbs.rules import BranchEnd, StepContext

_BODY = "do"


@dataclass(frozen=True, slots=True)
class LoopMemory:
    """How many rounds are over, and the values carried into the next."""

    num_rounds: int
    carried: dict[str, JsonValue]


class LoopRules(VerbRules[Loop]):
    """Runs at most `max` rounds, one after the other."""

    word = "loop"

    def bodies(self, verb: Loop) -> Mapping[str, Mapping[str, Step]]:
        """The block under `do`."""
        return {_BODY: verb.body.steps}

    def start(self, verb: Loop, context: StepContext) -> Reaction:
        """Read the first values."""
        carried = {name: value.evaluate(context.scope) for name, value in verb.carried.items()}
        return _go_on(verb, context, LoopMemory(0, carried))

    def branch_ended(
        self, verb: Loop, context: StepContext, memory: object, end: BranchEnd
    ) -> Reaction:
        """Take the round's values over; end, or go on with the next round."""
        assert isinstance(memory, LoopMemory)
        following = {name: value.evaluate(end.scope) for name, value in verb.next.items()}
        after = LoopMemory(memory.num_rounds + 1, {**memory.carried, **following})
        scope = Layered(after.carried, end.scope)
        if verb.until is not None and holds(verb.until, scope):
            return Reaction(after, (Finish(after.carried),))
        return _go_on(verb, context, after)


def _go_on(verb: Loop, context: StepContext, memory: LoopMemory) -> Reaction:
    scope = Layered(memory.carried, context.scope)
    if verb.while_condition is not None and not holds(verb.while_condition, scope):
        return Reaction(memory, (Finish(memory.carried),))
    if memory.num_rounds < verb.max_rounds:
        is_last = memory.num_rounds + 1 == verb.max_rounds
        segment = f"[{memory.num_rounds}]"
        branch = OpenBranch(str(memory.num_rounds), segment, _BODY, memory.carried, is_last)
        return Reaction(memory, (branch,))
    has_condition = verb.until is not None or verb.while_condition is not None
    if has_condition and verb.on_max == "fail":
        raise WorkflowError(
            "WF508",
            f"loop {context.path!r} came to its max of {verb.max_rounds} rounds before its "
            "condition was met",
            help="raise 'max', or go on with what there is by 'on_max: keep'",
        )
    return Reaction(memory, (Finish(memory.carried),))
