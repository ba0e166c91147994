"""How soon a conversation that is held will be continued, as far as the graph knows."""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from flowforge.language.program import Ask, Call
from flowforge.runtime.commands import ExpectUse
from flowforge.runtime.state import Status

if TYPE_CHECKING:
    from flowforge.runtime.conversations import Commands
    from flowforge.runtime.state import ScopeState, StepState

# Only an order of eviction depends on it: in wide graphs an estimate does, and an end of a step
# must not cost more the more steps there are.
_MOST_LOOKED_AT = 64


def tell_next_use(turn: Commands, step: StepState) -> None:
    """Say how soon the conversation that a step keeps is continued, if that is news."""
    assert step.conversation is not None, "only what is kept has a next use"
    use = ExpectUse(step.conversation, *_next_use(step))
    if use != step.use_told:
        step.use_told = use
        turn.commands.append(use)


def tell_next_uses(turn: Commands, scope: ScopeState) -> None:
    """A step of the scope has ended, or calls a tool: what waits for it may be nearer now."""
    for step in islice(scope.keepers, _MOST_LOOKED_AT):
        tell_next_use(turn, step)


def _next_use(step: StepState) -> tuple[float, tuple[str, ...]]:
    """Steps that must end, one behind the other, before some step continues this one.

    0 when a step may do so now; infinity when none will. Of wide graphs a lower bound. And the
    calls and questions that the first to continue it waits for.
    """
    names, least = step.node.continued_by, inf
    awaits: tuple[str, ...] = ()
    if len(names) > _MOST_LOOKED_AT:
        return 0, ()
    counted: dict[str, int] = {}
    for name in names:
        sibling = step.scope.steps[name]
        if sibling.has_claims and (num_steps := steps_before(sibling, counted)) < least:
            least, awaits = num_steps, awaited_works(sibling)
    return least, awaits


def awaited_works(step: StepState) -> tuple[str, ...]:
    """The calls and questions that a step waits for; of many none, since it is but an order."""
    needs = step.node.step.needs
    if step.status is not Status.WAITING or len(needs) > _MOST_LOOKED_AT:
        return ()
    awaited = (step.scope.steps[needed] for needed in sorted(needs))
    return tuple(
        path
        for one in awaited
        if one.status is Status.RUNNING and isinstance(one.node.step.verb, Call | Ask)
        for path in sorted(one.works)
    )


def steps_before(step: StepState, counted: dict[str, int]) -> int:
    """The longest chain of steps that have not ended and that this one waits for."""
    if step.status is not Status.WAITING:
        return 0
    name, needs = step.node.step.name, step.node.step.needs
    if name not in counted:
        counted[name] = 1
        if len(counted) < _MOST_LOOKED_AT and len(needs) <= _MOST_LOOKED_AT:
            awaited = (step.scope.steps[needed] for needed in sorted(needs))
            going_on = (one for one in awaited if one.status in (Status.WAITING, Status.RUNNING))
            counted[name] = 1 + max((steps_before(one, counted) for one in going_on), default=-1)
    return counted[name]
