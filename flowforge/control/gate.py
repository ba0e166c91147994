"""A backend that begins nothing new while a run is paused or at its limit of generations.

What is being written goes on.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.passing import PassingBackend, PassingConversation
from flowforge.backends.protocol import TextDelta

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from flowforge.backends.protocol import (
        Backend,
        Conversation,
        GenerateRequest,
        GenerationDone,
        ScoreRequest,
        ScoringDone,
    )


class Gate:
    """Open or closed; who comes while it is closed, or while too many are inside, waits."""

    def __init__(self) -> None:
        self._limit: int | None = None
        self._num_inside = 0
        self._left = anyio.Event()
        self._opened: anyio.Event | None = None
        self._closed = anyio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether who comes now waits."""
        return self._opened is not None

    def close(self) -> None:
        """Let nobody through from now on; idempotent."""
        if self._opened is None:
            self._opened = anyio.Event()
            self._closed.set()

    def open(self) -> None:
        """Let everybody through; idempotent."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None
            self._closed = anyio.Event()

    async def wait_closed(self) -> None:
        """Return once the gate is closed."""
        await self._closed.wait()

    @property
    def num_inside(self) -> int:
        """How many are inside now."""
        return self._num_inside

    def limit(self, num: int | None) -> None:
        """How many may be inside; those that are stay. None is any number."""
        self._limit = num
        self._tell_of_room()

    @asynccontextmanager
    async def inside(self) -> AsyncGenerator[None]:
        """Go in, once the gate is open and has room; out behind the block."""
        await self.pass_through()
        while self._limit is not None and self._num_inside >= self._limit:
            await self._left.wait()
            await self.pass_through()
        self._num_inside += 1
        try:
            yield
        finally:
            self._num_inside -= 1
            self._tell_of_room()

    def _tell_of_room(self) -> None:
        self._left.set()
        self._left = anyio.Event()

    async def pass_through(self) -> None:
        """Return once the gate is open."""
        while self._opened is not None:
            await self._opened.wait()


class GatedBackend(PassingBackend):
    """A backend whose conversations go through a gate to write. spend: told of tokens written."""

    def __init__(self, inner: Backend, gate: Gate, spend: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._gate = gate
        self._spend = spend

    def around(self, inner: Conversation) -> Conversation:
        """See `PassingBackend`."""
        return _GatedConversation(inner, self._gate, self._spend)


class _GatedConversation(PassingConversation):
    def __init__(self, inner: Conversation, gate: Gate, spend: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._gate = gate
        self._spend = spend

    def around(self, inner: Conversation) -> Conversation:
        return _GatedConversation(inner, self._gate, self._spend)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        async with self._gate.inside():
            generation = self.inner.generate(request)
            try:
                async for item in generation:
                    if isinstance(item, TextDelta):
                        self._spend(item.num_tokens)
                    yield item
            finally:
                await generation.aclose()

    async def prepare(self, beginning: str) -> None:
        await self._gate.pass_through()
        await super().prepare(beginning)

    async def score(self, request: ScoreRequest) -> ScoringDone:
        async with self._gate.inside():
            return await self.inner.score(request)
