"""A workflow file that runs inside a flow: its events, cost and questions are the flow's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.passing import PassingBackend, PassingConversation
from flowforge.backends.protocol import GenerationDone
from flowforge.runtime import events
from flowforge.runtime.run import RunFailedError, start
from flowforge.runtime.seeds import derived_seed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from flowforge.backends.protocol import (
        Conversation,
        GenerateRequest,
        ScoreRequest,
        ScoringDone,
        TextDelta,
    )
    from flowforge.flows.session import FlowSession
    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.commands import StartQuestion
    from flowforge.runtime.events import Fact

_OF_RUNS = (
    events.RunStarted,
    events.RunResumed,
    events.RunFinished,
    events.RunFailed,
    events.RunCancelled,
    events.PagesSampled,
)


async def run_program(
    program: Program, inputs: Mapping[str, JsonValue], session: FlowSession, path: str
) -> JsonValue:
    """Run a workflow file to its end, its steps below `path`; its outputs by name.

    inputs: complete and valid. Raises what the first of its steps failed with.
    """

    async def ask(question: StartQuestion) -> str:
        return await session.asker(replace(question, path=f"{path}/{question.path}"))

    async with start(
        program,
        inputs,
        _Backend(session, path),
        clock=session.clock,
        seed=derived_seed(session.seed, path),
        asker=ask,
    ) as run:
        async for event in run.events():
            if not isinstance(event.fact, _OF_RUNS):
                session.stream.emit(_below(path, event.fact))
        try:
            return dict(await run.result())
        except RunFailedError as error:
            raise error.failures[0].error from error


def _below(path: str, fact: Fact) -> Fact:
    """The fact with its paths below another."""
    assert not isinstance(fact, _OF_RUNS)
    if isinstance(fact, events.StepRetried):
        fact = replace(fact, next_path=f"{path}/{fact.next_path}")
    if isinstance(fact, events.StepStarted) and fact.continues is not None:
        fact = replace(fact, continues=f"{path}/{fact.continues}")
    return replace(fact, path=f"{path}/{fact.path}")


class _Backend(PassingBackend):
    """The flow's backend: it knows steps by their paths in the flow, and enters their cost."""

    def __init__(self, session: FlowSession, path: str) -> None:
        super().__init__(session.backend)
        self._session = session
        self._path = path

    async def open(self, *, system: str | None = None, model: str | None = None) -> Conversation:
        inner = await self.inner.open(system=system, model=model)
        return _Conversation(inner, self._session, self._path, model)


class _Conversation(PassingConversation):
    def __init__(
        self, inner: Conversation, session: FlowSession, path: str, model: str | None
    ) -> None:
        super().__init__(inner)
        self._session = session
        self._path = path
        self._model = model

    def around(self, inner: Conversation) -> Conversation:
        return _Conversation(inner, self._session, self._path, self._model)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        book, model = self._session.book, self._model
        items = self.inner.generate(replace(request, label=f"{self._path}/{request.label}"))
        try:
            async for item in items:
                if isinstance(item, GenerationDone):
                    book.enter(item, model)
                yield item
        finally:
            with anyio.CancelScope(shield=True):
                await items.aclose()
            cut = self.inner.take_cut()
            if cut is not None:
                book.enter_cut(cut, model)

    async def score(self, request: ScoreRequest) -> ScoringDone:
        request = replace(request, label=f"{self._path}/{request.label}")
        done = await self.inner.score(request)
        self._session.book.enter_scoring(done, self._model)
        return done
