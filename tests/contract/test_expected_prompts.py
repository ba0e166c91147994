"""Where pages are short, conversations stand for prompts to come until these are asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.passing import PassingBackend, PassingConversation
from flowforge.language.loader import load_text, require_program
from flowforge.runtime.run import start
from flowforge.testing import script

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from flowforge.backends.protocol import (
        Backend,
        BackendStatistics,
        Conversation,
        GenerateRequest,
        GenerationDone,
        TextDelta,
    )

TURNS = require_program(
    load_text("""
flowforge: 1
name: turns
steps:
  first: { system: "you plan", user: "begin", gen: { max_tokens: 4 } }
  second: { system: "you judge", user: "see: ${ first }", gen: { max_tokens: 4 } }
  third: { system: "you plan", user: "again: ${ second }", gen: { max_tokens: 4 } }
outputs: { third: "${ third }" }
""")
)


class Short(PassingBackend):
    """A backend with so many of ten pages free; holds the first answer until `may_answer`.

    expected: beginnings that conversations stand for, with how soon they are asked, as told last.
    """

    def __init__(self, inner: Backend, num_free: int) -> None:
        super().__init__(inner)
        self._num_free = num_free
        self.num_open = 0
        self.expected: dict[str, float] = {}
        self.has_expected = anyio.Event()
        self.may_answer = anyio.Event()

    def around(self, inner: Conversation) -> Conversation:
        return Seen(inner, self)

    def statistics(self) -> BackendStatistics:
        return replace(self.inner.statistics(), pages_total=10, pages_free=self._num_free)


class Seen(PassingConversation):
    def __init__(self, inner: Conversation, backend: Short) -> None:
        super().__init__(inner)
        self._backend = backend
        self._beginning: str | None = None
        backend.num_open += 1

    def around(self, inner: Conversation) -> Conversation:
        return Seen(inner, self._backend)

    def expect_beginning(self, beginning: str) -> None:
        self._beginning = beginning
        super().expect_beginning(beginning)

    def expect_use(self, num_steps: float, ready_in_s: float = 0.0) -> None:
        if self._beginning is not None:
            self._backend.expected[self._beginning] = num_steps
            if len(self._backend.expected) == 2:
                self._backend.has_expected.set()
        super().expect_use(num_steps, ready_in_s)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        await self._backend.may_answer.wait()
        async for item in self.inner.generate(request):
            yield item

    async def close(self) -> None:
        self._backend.num_open -= 1
        if self._beginning is not None:
            self._backend.expected.pop(self._beginning, None)
        await super().close()


async def test_prompts_to_come_are_stood_for_until_they_are_asked() -> None:
    backend = Short(script({"*": "a word"}), num_free=4)

    async with start(TURNS, {}, backend) as run:
        await backend.has_expected.wait()
        assert {"see: ": 1, "again: ": 2} == backend.expected
        backend.may_answer.set()
        await run.result()

    assert {} == backend.expected
    assert 0 == backend.num_open


async def test_nothing_is_stood_for_while_pages_are_enough() -> None:
    backend = Short(script({"*": "a word"}), num_free=5)
    backend.may_answer.set()

    async with start(TURNS, {}, backend) as run:
        await run.result()

    assert not backend.has_expected.is_set()
    assert 0 == backend.num_open


async def test_a_run_that_is_cancelled_gives_back_what_it_expected() -> None:
    backend = Short(script({"*": "a word"}), num_free=0)

    async with start(TURNS, {}, backend):
        await backend.has_expected.wait()

    assert 0 == backend.num_open
