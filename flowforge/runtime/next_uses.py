"""How soon a conversation that is held will be continued, as far as the graph knows."""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import TYPE_CHECKING

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
    num_steps = steps_to_next_use(step)
    if num_steps != step.num_steps_told:
        step.num_steps_told = num_steps
        turn.commands.append(ExpectUse(step.conversation, num_steps))


def tell_next_uses(turn: Commands, scope: ScopeState) -> None:
    """A step of the scope has ended: what waits for it is nearer now."""
    for step in islice(scope.keepers, _MOST_LOOKED_AT):
        tell_next_use(turn, step)


def steps_to_next_use(step: StepState) -> float:
    """Steps that must end, one behind the other, before some step continues this one.

    0 when a step may do so now; infinity when none will. Of wide graphs a lower bound.
    """
    names, least = step.node.continued_by, inf
    if len(names) > _MOST_LOOKED_AT:
        return 0
    counted: dict[str, int] = {}
    for name in names:
        sibling = step.scope.steps[name]
        if sibling.has_claims:
            least = min(least, _steps_before(sibling, counted))
    return least


def _steps_before(step: StepState, counted: dict[str, int]) -> int:
    """The longest chain of steps that have not ended and that this one waits for."""
    if step.status is not Status.WAITING:
        return 0
    name, needs = step.node.step.name, step.node.step.needs
    if name not in counted:
        counted[name] = 1
        if len(counted) < _MOST_LOOKED_AT and len(needs) <= _MOST_LOOKED_AT:
            awaited = (step.scope.steps[needed] for needed in sorted(needs))
            going_on = (one for one in awaited if one.status in (Status.WAITING, Status.RUNNING))
            counted[name] = 1 + max((_steps_before(one, counted) for one in going_on), default=-1)
    return counted[name]
