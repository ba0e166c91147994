"""Who holds a conversation: it is kept for as long as some step instance may still fork it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from flowforge.runtime.commands import ReleaseConversation
from flowforge.runtime.next_uses import tell_next_use
from flowforge.runtime.state import Status

if TYPE_CHECKING:
    from flowforge.runtime.commands import Command
    from flowforge.runtime.state import StepState


class Commands(Protocol):
    """Where commands are collected."""

    commands: list[Command]


def hold(step: StepState, path: str) -> None:
    """A work of the step opens or forks a conversation, which is the step's from now on."""
    step.conversations.add(path)
    step.num_forking += 1


def drop_claims(turn: Commands, step: StepState) -> None:
    """The step will fork nothing any more; idempotent."""
    if not step.has_claims:
        return
    step.has_claims = False
    for name in step.node.continues:
        source = step.scope.find_step(name)
        source.num_claims -= 1
        if source.status is not Status.FINISHED:
            continue
        if source.num_claims == 0:
            release_all(turn, source)
        elif source in source.scope.keepers:
            tell_next_use(turn, source)


def keep_only(turn: Commands, step: StepState, path: str | None) -> None:
    """The finished step has this conversation, if somebody may continue it, and no other."""
    kept = path if path in step.conversations and step.num_claims > 0 else None
    for other in sorted(step.conversations - {kept}):
        turn.commands.append(ReleaseConversation(other))
    step.conversations = set() if kept is None else {kept}
    step.conversation = kept
    if kept is not None:
        step.scope.keepers[step] = None
        tell_next_use(turn, step)


def release_all(turn: Commands, step: StepState) -> None:
    """Close every conversation of the step; idempotent."""
    step.scope.keepers.pop(step, None)
    turn.commands += [ReleaseConversation(path) for path in sorted(step.conversations)]
    step.conversations = set()
