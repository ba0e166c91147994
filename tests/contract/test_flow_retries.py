"""Turns of flows that are tried again: events, waits, seeds, and what ends them early."""

from __future__ import annotations

from typing import Annotated

import anyio
import pytest
from pydantic import AfterValidator, TypeAdapter

import flowforge as ff
from flowforge.runtime.events import (
    Fact,
    RunFinished,
    StepCancelled,
    StepFailed,
    StepFinished,
    StepRetried,
    StepStarted,
)
from flowforge.testing import VirtualClock, in_turn, script

BROKEN = ff.ScriptedAnswer(error=ff.EngineError("EN900", "out of order"))
PLAIN = ff.Retry(3, backoff=2, jitter="none")


def is_even(number: int) -> int:
    if number % 2:
        raise ValueError("must be even")
    return number


EVEN: TypeAdapter[int] = TypeAdapter(Annotated[int, AfterValidator(is_even)])


@ff.flow
async def draft(run: ff.Run) -> str:
    async with run.chat() as chat:
        chat.user("Write.")
        return await chat.gen(name="draft", retry=PLAIN)


async def told(flow: ff.Flow[[], str] | ff.Flow[[], int], **answers: object) -> list[Fact]:
    clock = VirtualClock()
    async with ff.start(flow, backend=script(answers), clock=clock, seed=1) as handle:
        return [event.fact async for event in handle.events()]


async def test_each_try_is_a_step_and_waits_twice_as_long_as_the_one_before() -> None:
    facts = await told(draft, draft=in_turn(BROKEN, BROKEN, "done"))

    steps = [fact for fact in facts if isinstance(fact, StepStarted | StepRetried | StepFinished)]
    assert ["draft", "draft", "draft#2", "draft#2", "draft#3", "draft#3"] == [
        fact.path for fact in steps
    ]
    waits = [(fact.next_path, fact.delay_s) for fact in steps if isinstance(fact, StepRetried)]
    assert [("draft#2", 2), ("draft#3", 4)] == waits
    assert isinstance(facts[-1], RunFinished)
    assert {"result": "done"} == facts[-1].outputs


async def test_the_last_failure_is_the_steps() -> None:
    facts = await told(draft, draft=in_turn(BROKEN, BROKEN, BROKEN))

    failed = [fact for fact in facts if isinstance(fact, StepFailed)]
    assert [("draft#3", "EN900")] == [(fact.path, fact.code) for fact in failed]


async def test_what_the_author_has_to_change_is_not_tried_again() -> None:
    error = ff.ScriptedAnswer(error=ff.WorkflowError("WF416", "no such prefill"))

    facts = await told(draft, draft=in_turn(error, "never asked"))

    assert [] == [fact for fact in facts if isinstance(fact, StepRetried)]
    assert ["draft"] == [fact.path for fact in facts if isinstance(fact, StepFailed)]


async def test_an_answer_that_the_type_refuses_is_asked_for_again_with_another_seed() -> None:
    @ff.flow
    async def count(run: ff.Run) -> int:
        async with run.chat() as chat:
            chat.user("How many?")
            return await chat.gen(EVEN, name="n", retry=2)

    backend = script({"n": in_turn("3", "4")})

    assert 4 == await ff.run(count, backend=backend, seed=1)
    first, second = backend.prompts
    assert "user: How many?" == first.text == second.text
    assert isinstance(first.request, type(second.request))
    assert first.request != second.request
    assert ("n", "n#2") == (first.label, second.label)


async def test_a_cancel_between_two_tries_cancels_the_try_that_was_to_come() -> None:
    async def facts_after_cancel() -> list[Fact]:
        async with ff.start(draft, backend=script({"draft": in_turn(BROKEN, "x")})) as handle:
            facts: list[Fact] = []
            async for event in handle.events():
                facts.append(event.fact)
                if isinstance(event.fact, StepRetried):
                    await anyio.wait_all_tasks_blocked()
                    handle.cancel()
            return facts

    facts = await facts_after_cancel()

    assert ["draft#2"] == [fact.path for fact in facts if isinstance(fact, StepCancelled)]
    assert [] == [f for f in facts if isinstance(f, StepStarted) and f.path == "draft#2"]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"attempts": 0}, "WF607"),
        ({"attempts": 2, "factor": 0.5}, "WF607"),
        ({"attempts": 2, "backoff": "2"}, "WF120"),
        ({"attempts": 2, "max_backoff": -1}, "WF120"),
    ],
)
def test_a_retry_that_means_nothing_is_refused(settings: dict[str, object], code: str) -> None:
    with pytest.raises(ff.WorkflowError, match=code):
        ff.Retry(**settings)  # type: ignore[arg-type]  # wrong values are the point
