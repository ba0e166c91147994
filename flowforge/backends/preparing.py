"""What is known of a coming prompt: computed while nothing else is, or kept where it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from flowforge.backends.protocol import Conversation


@runtime_checkable
class Prepares(Protocol):
    """A conversation that can compute the beginning of its next prompt before it is asked."""

    def is_worth_preparing(self, beginning: str) -> bool:
        """Whether enough is not computed yet of what `prepare` would compute."""
        ...

    async def prepare(self, beginning: str) -> None:
        """Compute all that was said, and what the next user turn begins with; nothing joins.

        Only while memory is free and nothing that was asked for is to be computed. What it cost,
        also when it is cancelled, is for `take_cut`.
        """
        ...


def is_worth_preparing(conversation: Conversation, beginning: str) -> bool:
    """See `Prepares`; of conversations that cannot prepare nothing is."""
    return isinstance(conversation, Prepares) and conversation.is_worth_preparing(beginning)


async def prepare(conversation: Conversation, beginning: str) -> None:
    """See `Prepares`; of conversations that cannot there is nothing to do."""
    if isinstance(conversation, Prepares):
        await conversation.prepare(beginning)


@runtime_checkable
class Expects(Protocol):
    """A conversation that can stand for the beginning of a prompt that is asked elsewhere."""

    def expect_beginning(self, beginning: str) -> None:
        """Take all that was said, and what the next user turn begins with, for what is expected.

        Computes nothing; what is cached of it counts as needed when `expect_use` says. Nothing else
        is done with the conversation then but to close it.
        """
        ...


def expect_beginning(conversation: Conversation, beginning: str) -> None:
    """See `Expects`; of conversations that cannot there is nothing to do."""
    if isinstance(conversation, Expects):
        conversation.expect_beginning(beginning)
