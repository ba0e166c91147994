"""A generation that was begun before its time: what it writes is kept until it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import anyio

from flowforge.backends.protocol import GenerationDone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from flowforge.backends.notices import Notice
    from flowforge.backends.protocol import Conversation, GenerationCut, TextDelta
    from flowforge.runtime.commands import StartGeneration

    Items: TypeAlias = AsyncGenerator[TextDelta | GenerationDone, None]
    Begin: TypeAlias = Callable[[Callable[[Notice], None]], Awaitable[tuple[Conversation, Items]]]
    """Opens a conversation and lets the model write on it; gets who hears of the way there."""


class Ahead:
    """One such generation. `run` it in a task; then either `adopt` or `give_up`."""

    def __init__(self, command: StartGeneration) -> None:
        self.command = command
        self._scope = anyio.CancelScope()
        self._items: list[TextDelta | GenerationDone] = []
        self._notices: list[Notice] = []
        self._tell_notice: Callable[[Notice], None] = self._notices.append
        self._is_handed_out = False
        self._error: Exception | None = None
        self._conversation: Conversation | None = None
        self._over = anyio.Event()
        self._changed = anyio.Event()

    async def run(self, begin: Begin) -> None:
        """Write to the end, or until it is given up. What fails is told to who asks for it."""
        try:
            with self._scope:
                self._conversation, items = await begin(lambda notice: self._tell_notice(notice))
                self._tell()
                await self._write(items)
        except Exception as error:
            self._error = error
        finally:
            self._over.set()
            self._tell()

    async def adopt(self, tell: Callable[[Notice], None]) -> tuple[Conversation, Items]:
        """The conversation, and what is written on it from the beginning; both are the caller's.

        tell: hears what happened on the way, and happens. Raises what opening it raised: it is then
        still to be given up. Closing the generator early ends the generation.
        """
        for notice in self._notices:
            tell(notice)
        self._tell_notice = tell
        while self._conversation is None and not self._over.is_set():
            await self._changed.wait()
        if self._conversation is None:
            assert self._error is not None, "what was adopted is not given up"
            raise self._error
        return self._conversation, self._replayed()

    def take_cut(self) -> GenerationCut | None:
        """What it cost if the caller did not come to its end; told once, when it is over."""
        if self._conversation is None or self._is_handed_out:
            return None
        last = self._items[-1] if self._items else None
        if isinstance(last, GenerationDone):
            self._is_handed_out = True
            return last.as_cut()
        return self._conversation.take_cut()

    async def give_up(self) -> GenerationCut | None:
        """End it, close its conversation and say what it cost."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._over.wait()
            if self._conversation is not None:
                await self._conversation.close()
        return self.take_cut()

    async def _write(self, items: Items) -> None:
        try:
            async for item in items:
                self._items.append(item)
                self._tell()
        finally:
            with anyio.CancelScope(shield=True):
                await items.aclose()

    async def _replayed(self) -> Items:
        idx = 0
        try:
            while True:
                while idx < len(self._items):
                    item = self._items[idx]
                    idx += 1
                    self._is_handed_out = isinstance(item, GenerationDone)
                    yield item
                if self._over.is_set():
                    break
                await self._changed.wait()
            if self._error is not None:
                raise self._error
        finally:
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._over.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
