"""A flow says of its chats which are needed next, so that others give their pages first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import flowforge as ff
from flowforge.backends.passing import PassingBackend, PassingConversation
from flowforge.testing import script

if TYPE_CHECKING:
    from flowforge.backends.protocol import Backend, Conversation


class Told(PassingBackend):
    """Numbers conversations as they are opened or forked. told: number and steps, in order."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.told: list[tuple[int, float]] = []
        self.num_conversations = 0

    def around(self, inner: Conversation) -> Conversation:
        return ToldConversation(inner, self)


class ToldConversation(PassingConversation):
    def __init__(self, inner: Conversation, backend: Told) -> None:
        super().__init__(inner)
        self._backend = backend
        self._number = backend.num_conversations
        backend.num_conversations += 1

    def around(self, inner: Conversation) -> Conversation:
        return ToldConversation(inner, self._backend)

    def expect_use(self, num_steps: float, ready_in_s: float = 0.0) -> None:
        self._backend.told.append((self._number, num_steps))
        super().expect_use(num_steps, ready_in_s)


async def test_a_chat_whose_forks_are_open_is_needed_after_them() -> None:
    backend = Told(script({"*": "a word"}))

    async def draft(chat: ff.Chat) -> str:
        return await chat.gen(name="draft")

    @ff.flow
    async def forks(run: ff.Run) -> str:
        async with run.chat() as chat:
            async with chat.fork(2) as (left, right):
                left.start(draft)
                right.start(draft)
            return await chat.gen(name="end")

    async with ff.start(forks, backend=backend) as handle:
        assert "a word" == await handle.result()

    assert [(0, 0), (0, 1), (0, 0)] == [one for one in backend.told if one[0] == 0]
    assert [(1, 0), (2, 0)] == [one for one in backend.told if one[0] != 0]


async def test_a_checked_answer_hands_the_next_use_on_to_the_fork_that_takes_its_place() -> None:
    backend = Told(script({"list": "[1]"}))

    @ff.flow
    async def checked(run: ff.Run) -> int:
        async with run.chat() as chat:
            chat.user("one number")
            return len(await chat.gen(list[int], name="list"))

    async with ff.start(checked, backend=backend) as handle:
        assert 1 == await handle.result()

    assert [(0, 0), (1, 0)] == backend.told
