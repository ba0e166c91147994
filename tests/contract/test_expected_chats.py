"""A flow says of its chats which are needed next, so that others give their pages first."""

from __future__ import annotations

from told_backend import ToldBackend

import flowforge as ff
from flowforge.testing import script


def numbered(backend: ToldBackend) -> list[tuple[int, float]]:
    """Which conversation was told, and in how many steps it is needed."""
    return [(one.number, one.num_steps) for one in backend.told]


async def test_a_chat_whose_forks_are_open_is_needed_after_them() -> None:
    backend = ToldBackend(script({"*": "a word"}))

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

    assert [(0, 0), (0, 1), (0, 0)] == [one for one in numbered(backend) if one[0] == 0]
    assert [(1, 0), (2, 0)] == [one for one in numbered(backend) if one[0] != 0]


async def test_a_checked_answer_hands_the_next_use_on_to_the_fork_that_takes_its_place() -> None:
    backend = ToldBackend(script({"list": "[1]"}))

    @ff.flow
    async def checked(run: ff.Run) -> int:
        async with run.chat() as chat:
            chat.user("one number")
            return len(await chat.gen(list[int], name="list"))

    async with ff.start(checked, backend=backend) as handle:
        assert 1 == await handle.result()

    assert [(0, 0), (1, 0)] == numbered(backend)
