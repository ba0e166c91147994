"""A backend that notes what its conversations are told to expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.backends.passing import PassingBackend, PassingConversation

if TYPE_CHECKING:
    from flowforge.backends.protocol import Backend, Conversation


@dataclass(frozen=True, slots=True)
class ToldUse:
    """What one conversation was told of its next use. number: in the order of opens and forks."""

    number: int
    num_steps: float
    ready_in_s: float


class ToldBackend(PassingBackend):
    """Numbers conversations as they are opened or forked. told: in order."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.told: list[ToldUse] = []
        self.num_conversations = 0

    def around(self, inner: Conversation) -> Conversation:
        """See `PassingBackend.around`."""
        return _ToldConversation(inner, self)


class _ToldConversation(PassingConversation):
    def __init__(self, inner: Conversation, backend: ToldBackend) -> None:
        super().__init__(inner)
        self._backend = backend
        self._number = backend.num_conversations
        backend.num_conversations += 1

    def around(self, inner: Conversation) -> Conversation:
        return _ToldConversation(inner, self._backend)

    def expect_use(self, num_steps: float, ready_in_s: float = 0.0) -> None:
        self._backend.told.append(ToldUse(self._number, num_steps, ready_in_s))
        super().expect_use(num_steps, ready_in_s)
