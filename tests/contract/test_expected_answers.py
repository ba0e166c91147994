"""A backend is told when a conversation goes on that waits for a tool or a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.backends.passing import PassingBackend, PassingConversation
from flowforge.language.loader import load_text, require_program
from flowforge.runtime.run import start
from flowforge.runtime.tool_times import ToolTimes
from flowforge.testing import VirtualClock, script

if TYPE_CHECKING:
    from flowforge.backends.protocol import Backend, Conversation
    from flowforge.runtime.commands import StartQuestion

ASKING = require_program(
    load_text("""
flowforge: 1
name: asking
steps:
  draft: { user: "draft it", gen: { max_tokens: 4 } }
  opinion: { ask: "Well?", after: draft }
  final: { from: draft, user: "They say: ${ opinion }", gen: { max_tokens: 4 } }
outputs: { final: "${ final }" }
""")
)


class Told(PassingBackend):
    """told: what conversations were expected, in order: steps, and seconds until then."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.told: list[tuple[float, float]] = []

    def around(self, inner: Conversation) -> Conversation:
        return ToldConversation(inner, self)


class ToldConversation(PassingConversation):
    def __init__(self, inner: Conversation, backend: Told) -> None:
        super().__init__(inner)
        self._backend = backend

    def around(self, inner: Conversation) -> Conversation:
        return ToldConversation(inner, self._backend)

    def expect_use(self, num_steps: float, ready_in_s: float = 0.0) -> None:
        self._backend.told.append((num_steps, ready_in_s))
        super().expect_use(num_steps, ready_in_s)


async def told_by_a_run(tool_times: ToolTimes, answers_in_s: float) -> list[tuple[float, float]]:
    clock, backend = VirtualClock(), Told(script({"*": "a word"}))

    async def answer(question: StartQuestion) -> str:
        await clock.sleep(answers_in_s)
        return f"yes to {question.path}"

    async with start(ASKING, {}, backend, clock=clock, asker=answer, tool_times=tool_times) as run:
        await run.result()
    return backend.told


async def test_an_answer_is_expected_when_earlier_ones_came_in_the_mean() -> None:
    tool_times = ToolTimes()

    # Nothing is known yet, and the answer comes after 30 seconds; then after 10.
    assert (1, 0.0) in await told_by_a_run(tool_times, 30)
    assert (1, 30.0) in await told_by_a_run(tool_times, 10)
    assert (1, 20.0) in await told_by_a_run(tool_times, 1)
