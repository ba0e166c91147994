"""A backend that begins nothing new while a run is paused; what is being written goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from flowforge.backends.revisions import revision_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from flowforge.backends.protocol import (
        Backend,
        BackendStatistics,
        Conversation,
        GenerateRequest,
        GenerationCut,
        GenerationDone,
        JsonValue,
        ScoreRequest,
        ScoringDone,
        TextDelta,
        ToolOffer,
    )
    from flowforge.language.token_meter import TokenMeter


class Gate:
    """Open or closed; who comes while it is closed waits."""

    def __init__(self) -> None:
        self._opened: anyio.Event | None = None

    @property
    def is_closed(self) -> bool:
        """Whether who comes now waits."""
        return self._opened is not None

    def close(self) -> None:
        """Let nobody through from now on; idempotent."""
        if self._opened is None:
            self._opened = anyio.Event()

    def open(self) -> None:
        """Let everybody through; idempotent."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None

    async def pass_through(self) -> None:
        """Return once the gate is open."""
        while self._opened is not None:
            await self._opened.wait()


class GatedBackend:
    """A backend whose conversations begin generations only while the gate is open."""

    def __init__(self, backend: Backend, gate: Gate) -> None:
        self._backend = backend
        self._gate = gate

    @property
    def name(self) -> str:
        """See `Backend`."""
        return self._backend.name

    @property
    def capacity(self) -> int | None:
        """See `Backend`."""
        return self._backend.capacity

    @property
    def token_meter(self) -> TokenMeter:
        """See `Backend`."""
        return self._backend.token_meter

    async def open(self, *, system: str | None = None, model: str | None = None) -> Conversation:
        """See `Backend`."""
        opened = await self._backend.open(system=system, model=model)
        return _GatedConversation(opened, self._gate)

    async def revision_of(self, model: str | None) -> str:
        """See `backends.revisions.revision_of`."""
        return await revision_of(self._backend, model)

    def statistics(self) -> BackendStatistics:
        """See `Backend`."""
        return self._backend.statistics()


class _GatedConversation:
    def __init__(self, conversation: Conversation, gate: Gate) -> None:
        self._conversation = conversation
        self._gate = gate

    def add_user(self, text: str) -> None:
        self._conversation.add_user(text)

    def add_assistant(self, text: str) -> None:
        self._conversation.add_assistant(text)

    def add_results(self, results: Sequence[JsonValue]) -> None:
        self._conversation.add_results(results)

    def add_written(
        self, written: GenerationDone, prefill: str, offer: ToolOffer | None = None
    ) -> None:
        self._conversation.add_written(written, prefill, offer)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        await self._gate.pass_through()
        generation = self._conversation.generate(request)
        try:
            async for item in generation:
                yield item
        finally:
            await generation.aclose()

    def take_cut(self) -> GenerationCut | None:
        return self._conversation.take_cut()

    async def score(self, request: ScoreRequest) -> ScoringDone:
        await self._gate.pass_through()
        return await self._conversation.score(request)

    async def fork(self) -> Conversation:
        return _GatedConversation(await self._conversation.fork(), self._gate)

    async def close(self) -> None:
        await self._conversation.close()
