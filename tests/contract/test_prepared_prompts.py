"""While a run waits for a person or a tool, what is known of the next prompts is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from await_points import cancelling_at
from history_backend import open_history_backend

import flowforge as ff
from flowforge.runtime.events import RunCancelled, RunFinished, StepFinished
from flowforge.runtime.policy import RunPolicy
from flowforge.runtime.run import start

if TYPE_CHECKING:
    from pathlib import Path

    from history_backend import HistoryBackend

    from flowforge.language.program import Program
    from flowforge.runtime.commands import StartQuestion
    from flowforge.runtime.events import Event
    from flowforge.runtime.people import Asker

WORKFLOW = """
flowforge: 1
name: asks
inputs: { topic: string }
steps:
  intro: { system: be brief, user: "name two", gen: { max_tokens: 3 } }
  go: { ask: "go on?", after: intro }
  apart:
    system: you are kind
    user: "of ${ inputs.topic } and what is said of them here: ${ go } and more"
    gen: { max_tokens: 3 }
  further:
    from: intro
    user: >-
      go further than that, and say of each of the two where it begins, which towns it comes through
      and into which sea it flows in the end, as ${ go }
    gen: { max_tokens: 3 }
outputs: { apart: "${ apart }", further: "${ further }" }
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    path = tmp_path / "asks.yaml"
    path.write_text(WORKFLOW, encoding="utf-8")
    return ff.load(path)


async def run_of(
    program: Program, opened: HistoryBackend, asker: Asker, policy: RunPolicy | None = None
) -> list[Event]:
    policy = policy or RunPolicy()
    inputs = {"topic": "rivers"}
    async with start(program, inputs, opened.backend, seed=1, asker=asker, policy=policy) as run:
        return [event async for event in run.events()]


async def yes(question: StartQuestion) -> str:
    del question
    return "yes"


def prefilled(events: list[Event]) -> dict[str, int]:
    """Of each step, what it had to compute itself."""
    ends = [event.fact for event in events if isinstance(event.fact, StepFinished)]
    return {one.path: one.usage.prefilled_tokens for one in ends if one.usage is not None}


async def test_a_run_that_waits_for_a_person_computes_what_comes_next(program: Program) -> None:
    async with open_history_backend() as opened:
        without = await run_of(program, opened, yes, RunPolicy(prepares_prompts=False))
    async with open_history_backend() as opened:

        async def slow(question: StartQuestion) -> str:
            del question
            before = opened.backend.statistics().prefilled_tokens
            # Of the prompts, of a token a sign, 60 and 145 tokens are known now; waits for them.
            while opened.backend.statistics().prefilled_tokens < before + 205:
                await opened.backend.engine.settle()
            return "yes"

        events = await run_of(program, opened, slow)
        await opened.check_nothing_held()
        counted = opened.backend.statistics()

    end, end_without = events[-1].fact, without[-1].fact
    assert isinstance(end, RunFinished)
    assert isinstance(end_without, RunFinished)
    assert end_without.outputs == end.outputs
    spared = {name: num - prefilled(events)[name] for name, num in prefilled(without).items()}
    assert spared == {"intro": 0, "apart": 60, "further": 145}
    told = end.accounting
    assert told.prefilled_tokens == told.unique_prompt_tokens == counted.prefilled_tokens
    assert told.generated_tokens == counted.generated_tokens


async def test_a_few_tokens_behind_what_is_there_are_no_step_of_their_own(
    tmp_path: Path,
) -> None:
    path = tmp_path / "few.yaml"
    beginning = WORKFLOW[: WORKFLOW.index("  apart:")]
    further = 'further: { from: intro, user: "go on, as ${ go }", gen: { max_tokens: 3 } }'
    path.write_text(f'{beginning}  {further}\noutputs: {{ all: "${{ further }}" }}\n', "utf-8")
    async with open_history_backend() as opened:

        async def slow(question: StartQuestion) -> str:
            del question
            before = opened.backend.statistics().prefilled_tokens
            for _ in range(20):
                await opened.backend.engine.settle()
            assert opened.backend.statistics().prefilled_tokens == before
            return "yes"

        events = await run_of(ff.load(path), opened, slow)

    assert isinstance(events[-1].fact, RunFinished)


async def test_nothing_is_evicted_for_a_prompt_that_nobody_has_asked_for(program: Program) -> None:
    async with open_history_backend(num_pages=54) as opened:
        events = await run_of(program, opened, yes)
        await opened.check_nothing_held()

    assert isinstance(events[-1].fact, RunFinished)


@pytest.mark.timeout(120, func_only=True)
async def test_a_cancel_at_any_point_leaves_nothing_held_and_the_books_right(
    program: Program,
) -> None:
    num_told, point, is_reached = 0, 1, True
    async with open_history_backend() as opened:

        async def slow(question: StartQuestion) -> str:
            for _ in range(3):
                await opened.backend.engine.settle()
            return await yes(question)

        while is_reached:
            # A text of its own each time, so that there is something to compute.
            inputs = {"topic": f"river {point}"}
            async with start(program, inputs, opened.backend, seed=1, asker=slow) as run:
                with cancelling_at(point, run.cancel) as points:
                    events = [event async for event in run.events()]
            end = events[-1].fact
            assert isinstance(end, RunFinished | RunCancelled), end
            num_told += end.accounting.prefilled_tokens
            await opened.check_nothing_held()
            assert opened.backend.statistics().prefilled_tokens == num_told, f"point {point}"
            is_reached, point = points.is_reached, point + 3

    assert point > 50
