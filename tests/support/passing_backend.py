"""A backend and conversations that pass everything on: what a test changes, it overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


class PassingConversation:
    """Is what `inner` is; `around` says what its forks are."""

    def __init__(self, inner: Conversation) -> None:
        self.inner = inner

    def around(self, inner: Conversation) -> Conversation:
        """A conversation like this one around another."""
        return type(self)(inner)

    def add_user(self, text: str) -> None:
        self.inner.add_user(text)

    def add_assistant(self, text: str) -> None:
        self.inner.add_assistant(text)

    def add_results(self, results: Sequence[JsonValue]) -> None:
        self.inner.add_results(results)

    def add_written(
        self, written: GenerationDone, prefill: str, offer: ToolOffer | None = None
    ) -> None:
        self.inner.add_written(written, prefill, offer)

    def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        return self.inner.generate(request)

    def take_cut(self) -> GenerationCut | None:
        return self.inner.take_cut()

    async def score(self, request: ScoreRequest) -> ScoringDone:
        return await self.inner.score(request)

    async def fork(self) -> Conversation:
        return self.around(await self.inner.fork())

    async def close(self) -> None:
        await self.inner.close()


class PassingBackend:
    """Is what `inner` is; `around` says what its conversations are."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def capacity(self) -> int | None:
        return self.inner.capacity

    @property
    def token_meter(self) -> TokenMeter:
        return self.inner.token_meter

    def around(self, inner: Conversation) -> Conversation:
        """A conversation of this backend around one of the inner backend."""
        return PassingConversation(inner)

    async def open(self, *, system: str | None = None, model: str | None = None) -> Conversation:
        return self.around(await self.inner.open(system=system, model=model))

    def statistics(self) -> BackendStatistics:
        return self.inner.statistics()
