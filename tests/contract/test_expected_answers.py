"""A backend is told when a conversation goes on that waits for a tool or a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from told_backend import ToldBackend

from flowforge.language.loader import load_text, require_program
from flowforge.runtime.run import start
from flowforge.runtime.tool_times import ToolTimes
from flowforge.testing import VirtualClock, script

if TYPE_CHECKING:
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


async def told_by_a_run(tool_times: ToolTimes, answers_in_s: float) -> list[tuple[float, float]]:
    """When conversations were expected to go on: in so many steps, behind so many seconds."""
    clock, backend = VirtualClock(), ToldBackend(script({"*": "a word"}))

    async def answer(question: StartQuestion) -> str:
        await clock.sleep(answers_in_s)
        return f"yes to {question.path}"

    async with start(ASKING, {}, backend, clock=clock, asker=answer, tool_times=tool_times) as run:
        await run.result()
    return [(one.num_steps, one.ready_in_s) for one in backend.told]


async def test_an_answer_is_expected_when_earlier_ones_came_in_the_mean() -> None:
    tool_times = ToolTimes()

    # Nothing is known yet, and the answer comes after 30 seconds; then after 10.
    assert (1, 0.0) in await told_by_a_run(tool_times, 30)
    assert (1, 30.0) in await told_by_a_run(tool_times, 10)
    assert (1, 20.0) in await told_by_a_run(tool_times, 1)
