"""A backend that begins nothing new while a run is paused; what is being written goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from flowforge.backends.passing import PassingBackend, PassingConversation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from flowforge.backends.protocol import (
        Backend,
        Conversation,
        GenerateRequest,
        GenerationDone,
        ScoreRequest,
        ScoringDone,
        TextDelta,
    )


class Gate:
    """Open or closed; who comes while it is closed waits."""

    def __init__(self) -> None:
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

    async def pass_through(self) -> None:
        """Return once the gate is open."""
        while self._opened is not None:
            await self._opened.wait()


class GatedBackend(PassingBackend):
    """A backend whose conversations begin generations only while the gate is open."""

    def __init__(self, inner: Backend, gate: Gate) -> None:
        super().__init__(inner)
        self._gate = gate

    def around(self, inner: Conversation) -> Conversation:
        """See `PassingBackend`."""
        return _GatedConversation(inner, self._gate)


class _GatedConversation(PassingConversation):
    def __init__(self, inner: Conversation, gate: Gate) -> None:
        super().__init__(inner)
        self._gate = gate

    def around(self, inner: Conversation) -> Conversation:
        return _GatedConversation(inner, self._gate)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        await self._gate.pass_through()
        generation = self.inner.generate(request)
        try:
            async for item in generation:
                yield item
        finally:
            await generation.aclose()

    async def score(self, request: ScoreRequest) -> ScoringDone:
        await self._gate.pass_through()
        return await self.inner.score(request)
