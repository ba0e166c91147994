"""Turns of chats that are taken from the step cache, when a model has written the same before."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, cast

from flowforge.backends.passing import PassingConversation
from flowforge.backends.protocol import GenerationDone, TextDelta
from flowforge.backends.revisions import revision_of
from flowforge.flows.prompts import FilledPrompt
from flowforge.journal.contents import digest_of
from flowforge.runtime.caching import parts_of_generation
from flowforge.runtime.commands import Answered, Said, StartGeneration, ToolResults
from flowforge.runtime.events import StepCached

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from flowforge.backends.protocol import Conversation, GenerateRequest, ToolOffer
    from flowforge.flows.cursor import Turn
    from flowforge.flows.session import FlowSession
    from flowforge.language.program import JsonValue


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How a turn uses the cache. max_age_s: of a result. is_seeded: the caller gave a seed."""

    max_age_s: float
    is_seeded: bool


class ToldConversation(PassingConversation):
    """Knows what was said in it, from its beginning.

    chain: a hash of all turns up to the last that a model wrote; "" before the first. said: since
    then.
    """

    def __init__(
        self,
        inner: Conversation,
        system: str | None,
        model: str | None,
        chain: str = "",
        said: tuple[Said | ToolResults, ...] = (),
    ) -> None:
        super().__init__(inner)
        self.system = system
        self.model = model
        self.chain = chain
        self.said = said

    def around(self, inner: Conversation) -> Conversation:
        """See `PassingConversation`."""
        return ToldConversation(inner, self.system, self.model, self.chain, self.said)

    def add_user(self, text: str) -> None:
        """See `Conversation`."""
        self.inner.add_user(text)
        places = text.places if isinstance(text, FilledPrompt) else ()
        self.said = (*self.said, Said("user", str(text), places))

    def add_assistant(self, text: str) -> None:
        """See `Conversation`."""
        self.inner.add_assistant(text)
        self.said = (*self.said, Said("assistant", text))

    def add_results(self, results: Sequence[JsonValue]) -> None:
        """See `Conversation`."""
        self.inner.add_results(results)
        self.said = (*self.said, ToolResults(tuple(results)))

    def add_written(
        self, written: GenerationDone, prefill: str, offer: ToolOffer | None = None
    ) -> None:
        """See `Conversation`."""
        self.inner.add_written(written, prefill, offer)
        self._go_on(written, prefill)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        """See `Conversation`."""
        generation = self.inner.generate(request)
        try:
            async for item in generation:
                if isinstance(item, GenerationDone):
                    self._go_on(item, request.prefill)
                yield item
        finally:
            await generation.aclose()

    def command(self, request: GenerateRequest, use: CacheUse) -> StartGeneration:
        """The next turn as the cache knows it."""
        return replace(self.asked(request), cache_s=use.max_age_s, is_seeded=use.is_seeded)

    def asked(self, request: GenerateRequest) -> StartGeneration:
        """The next turn, with what was said before it. system: before the first turn only."""
        system = None if self.chain else self.system
        return StartGeneration(request.label, None, system, self.said, request, self.model)

    def _go_on(self, written: GenerationDone, prefill: str) -> None:
        said = [asdict(one) for one in self.said]
        text = written.text if written.output_ids is None else list(written.output_ids)
        turn = [self.chain, self.system, self.model, said, prefill, text]
        self.chain = f"#{digest_of(cast('JsonValue', turn))[:16]}"
        self.said = ()


@asynccontextmanager
async def cached(
    session: FlowSession, turn: Turn, request: GenerateRequest, use: CacheUse | None
) -> AsyncGenerator[None]:
    """Around a generation: it finds a result of an equal one, or leaves its own for others.

    Equal ones of all runs of one process wait for each other.
    """
    memo, conversation = session.memo, turn.conversation
    cache = None if memo is None or memo.has_answer(request) else memo.cache
    if use is None or memo is None or cache is None:
        yield
        return
    assert isinstance(conversation, ToldConversation), "runs with a cache open such ones"
    command = conversation.command(request, use)
    revision = await revision_of(session.backend, conversation.model)
    parts = parts_of_generation(command, revision, conversation.chain, is_seeded=cache.is_seeded)
    async with cache.only_one(parts):
        found = await cache.find(command, parts)
        if isinstance(found, Answered):
            await memo.take(request, found, command)
            session.stream.emit(StepCached(request.label))
        yield
        if found is None and turn.is_whole:
            await cache.keep(command, parts, Answered(request.label, turn.done))
