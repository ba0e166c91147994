"""Works that were told of before their time, and that nobody will ask for after all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.runtime.commands import GiveUp

if TYPE_CHECKING:
    from flowforge.runtime.conversations import Commands
    from flowforge.runtime.state import StepState


def give_up_foreseen(turn: Commands, step: StepState) -> None:
    """The step asks for nothing more of what was told of; idempotent."""
    turn.commands += [GiveUp(path) for path in sorted(step.foreseen)]
    step.foreseen.clear()


def give_up_branches_over(turn: Commands, step: StepState) -> None:
    """The step does not come to the list that it wrote."""
    for name in step.node.gone_over_by:
        give_up_foreseen(turn, step.scope.steps[name])
