"""A backend and conversations that pass everything on: whoever changes something overrides it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.backends.kept_prefixes import keep_prefixes
from flowforge.backends.preparing import expect_beginning, is_worth_preparing, prepare
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


class PassingConversation:
    """Is what `inner` is; `around` says what its forks are."""

    def __init__(self, inner: Conversation) -> None:
        self.inner = inner

    def around(self, inner: Conversation) -> Conversation:
        """A conversation like this one around another."""
        return type(self)(inner)

    def add_user(self, text: str) -> None:
        """See `Conversation`."""
        self.inner.add_user(text)

    def add_assistant(self, text: str) -> None:
        """See `Conversation`."""
        self.inner.add_assistant(text)

    def add_results(self, results: Sequence[JsonValue]) -> None:
        """See `Conversation`."""
        self.inner.add_results(results)

    def add_written(
        self, written: GenerationDone, prefill: str, offer: ToolOffer | None = None
    ) -> None:
        """See `Conversation`."""
        self.inner.add_written(written, prefill, offer)

    def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        """See `Conversation`."""
        return self.inner.generate(request)

    def is_worth_preparing(self, beginning: str) -> bool:
        """See `preparing.Prepares`."""
        return is_worth_preparing(self.inner, beginning)

    async def prepare(self, beginning: str) -> None:
        """See `preparing.Prepares`."""
        await prepare(self.inner, beginning)

    def expect_beginning(self, beginning: str) -> None:
        """See `preparing.Expects`."""
        expect_beginning(self.inner, beginning)

    def take_cut(self) -> GenerationCut | None:
        """See `Conversation`."""
        return self.inner.take_cut()

    async def score(self, request: ScoreRequest) -> ScoringDone:
        """See `Conversation`."""
        return await self.inner.score(request)

    def expect_use(self, num_steps: float, ready_in_s: float = 0.0) -> None:
        """See `Conversation`."""
        self.inner.expect_use(num_steps, ready_in_s)

    async def fork(self) -> Conversation:
        """See `Conversation`."""
        return self.around(await self.inner.fork())

    async def close(self) -> None:
        """See `Conversation`."""
        await self.inner.close()


class PassingBackend:
    """Is what `inner` is; `around` says what its conversations are."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """See `Backend`."""
        return self.inner.name

    @property
    def capacity(self) -> int | None:
        """See `Backend`."""
        return self.inner.capacity

    @property
    def token_meter(self) -> TokenMeter:
        """See `Backend`."""
        return self.inner.token_meter

    def around(self, inner: Conversation) -> Conversation:
        """A conversation of this backend around one of the inner backend."""
        return PassingConversation(inner)

    async def open(self, *, system: str | None = None, model: str | None = None) -> Conversation:
        """See `Backend`."""
        return self.around(await self.inner.open(system=system, model=model))

    async def revision_of(self, model: str | None) -> str:
        """See `backends.revisions.revision_of`."""
        return await revision_of(self.inner, model)

    async def keep_prefixes(self) -> None:
        """See `backends.kept_prefixes.KeepsPrefixes`."""
        await keep_prefixes(self.inner)

    def statistics(self) -> BackendStatistics:
        """See `Backend`."""
        return self.inner.statistics()
