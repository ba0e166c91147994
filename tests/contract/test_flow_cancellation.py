"""A flow cancelled at each of its await points, one run a point, on asyncio and on trio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from passing_backend import PassingBackend, PassingConversation

import flowforge as ff
from flowforge.runtime.events import RunCancelled, RunFinished
from flowforge.testing import in_turn, people, script

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from flowforge.backends.protocol import (
        Backend,
        Conversation,
        GenerateRequest,
        GenerationDone,
        TextDelta,
    )

MAX_POINTS = 400


class Countdown:
    """Cancels at the n-th point that is passed; the points are those of the backend."""

    def __init__(self, num_points: int, cancel: Callable[[], object]) -> None:
        self.num_left = num_points
        self.cancel = cancel

    async def point(self) -> None:
        self.num_left -= 1
        if self.num_left == 0:
            self.cancel()
        await anyio.lowlevel.checkpoint()


class PointConversation(PassingConversation):
    """Passes each await through the countdown, first and last."""

    def __init__(self, inner: Conversation, countdown: Countdown) -> None:
        super().__init__(inner)
        self._countdown = countdown

    def around(self, inner: Conversation) -> Conversation:
        return PointConversation(inner, self._countdown)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        items = self.inner.generate(request)
        try:
            await self._countdown.point()
            async for item in items:
                await self._countdown.point()
                yield item
        finally:
            with anyio.CancelScope(shield=True):
                await items.aclose()

    async def fork(self) -> Conversation:
        await self._countdown.point()
        return await super().fork()

    async def close(self) -> None:
        await self._countdown.point()
        await super().close()


class PointBackend(PassingBackend):
    """A backend with a countdown at each await."""

    def __init__(self, inner: Backend, countdown: Countdown) -> None:
        super().__init__(inner)
        self._countdown = countdown

    def around(self, inner: Conversation) -> Conversation:
        return PointConversation(inner, self._countdown)

    async def open(self, *, system: str | None = None, model: str | None = None) -> Conversation:
        await self._countdown.point()
        return await super().open(system=system, model=model)


async def explore(chat: ff.Chat, angle: str) -> str:
    chat.user("{angle}", angle=angle)
    return await chat.gen(name="draft")


@ff.tool(effect="read")
async def count(text: str) -> int:
    await anyio.lowlevel.checkpoint()
    return len(text)


@ff.flow
async def everything(run: ff.Run) -> str:
    async with run.chat(system="S") as chat:
        chat.user("U")
        names = await chat.gen(list[str], items=2, name="names")
        drafts = await chat.map(explore, names, limit=1)
        async with chat.fork(2, join="first") as fork:
            race = fork.start(explore, names)
        async with chat.fork(2, join="settle") as (a, b):
            first = a.start(explore, "x")
            second = b.start(explore, "y")
        number = await chat.vote(int, 3)
        async with chat.stream(name="text") as stream:
            pieces = [piece async for piece in stream]
        length = await run.call(count, stream.result)
        answer = await run.ask("go?", choices=["yes"], timeout="1h")
    return (
        f"{drafts} {race.result} {first.result}{second.result} {number} {pieces} {length}{answer}"
    )


ANSWERS = {"names": ["a", "b"], "*/draft": "one two", "vote": "4", "text": "t u"}


async def test_a_cancel_at_any_await_point_leaves_nothing_open() -> None:
    for num_points in range(1, MAX_POINTS):
        inner = script(ANSWERS)
        countdown = Countdown(num_points, lambda: handle.cancel())
        async with ff.start(
            everything, backend=PointBackend(inner, countdown), asker=people({"ask": "yes"})
        ) as handle:
            last = [event.fact async for event in handle.events()][-1]
        assert 0 == inner.num_open, f"after a cancel at point {num_points}"
        if countdown.num_left > 0:
            assert isinstance(last, RunFinished)
            assert num_points > 50
            return
        assert isinstance(last, RunCancelled | RunFinished)
    pytest.fail("the flow never came to its end")


async def test_a_cancel_of_the_host_at_any_await_point_leaves_nothing_open() -> None:
    for num_points in range(1, MAX_POINTS):
        inner = script(ANSWERS)
        scope = anyio.CancelScope()
        countdown = Countdown(num_points, scope.cancel)
        with scope:
            await ff.run(
                everything, backend=PointBackend(inner, countdown), asker=people({"ask": "yes"})
            )
        assert 0 == inner.num_open, f"after a cancel at point {num_points}"
        if countdown.num_left > 0:
            assert num_points > 50
            return
    pytest.fail("the flow never came to its end")


async def test_a_step_may_clean_up_with_its_chat_after_a_cancel() -> None:
    gate = anyio.Event()
    closed: list[str] = []

    @ff.flow
    async def tidy(run: ff.Run) -> str:
        async with run.chat() as chat:
            try:
                return await chat.gen(name="text")
            finally:
                closed.append("tidy")

    backend = script({"text": in_turn(ff.ScriptedAnswer("t", gate=gate))})
    async with ff.start(tidy, backend=backend) as handle:
        await anyio.wait_all_tasks_blocked()
        handle.cancel()
        with pytest.raises(ff.RunCancelledError):
            await handle.result()

    assert ["tidy"] == closed
    assert 0 == backend.num_open
