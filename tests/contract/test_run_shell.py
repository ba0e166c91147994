"""A run over the scripted backend, on asyncio and on trio: order, forks, failures, cancellation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from flowforge.backends.passing import PassingConversation
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.errors import EngineError, Location, WorkflowError
from flowforge.language.answer_specs import SamplingSpec
from flowforge.language.expression_nodes import FieldOf, Name
from flowforge.language.expressions import Expression
from flowforge.language.program import Block, ForEach, Gen, Output, Program, Step
from flowforge.language.templates import Template
from flowforge.language.types import AnyType
from flowforge.runtime.clock import MonotonicClock
from flowforge.runtime.event_json import event_as_json
from flowforge.runtime.events import (
    RunCancelled,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    StepText,
)
from flowforge.runtime.run import RunCancelledError, RunFailedError, start

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from flowforge.backends.protocol import (
        BackendStatistics,
        Conversation,
    )
    from flowforge.backends.script import Answer
    from flowforge.language.expression_nodes import Node
    from flowforge.language.program import JsonValue
    from flowforge.runtime.events import Event
    from flowforge.runtime.run import Run

HERE = Location("analyst.yaml", 1, 1)
SEED = 5
ANSWERS: dict[str, Answer] = {
    "angles": '["cost", "range", "law"]',
    "explore[0]/draft": "cost matters",
    "explore[1]/draft": "range matters",
    "explore[2]/draft": "law matters",
    "report": "all of it matters",
}


def expression(node: Node) -> Expression:
    return Expression("…", node, AnyType(), frozenset(), HERE)


def template(*parts: str | Node) -> Template:
    return Template(tuple(p if isinstance(p, str) else expression(p) for p in parts), HERE)


def name(word: str) -> Name:
    return Name(0, 0, word)


def gen(
    step_name: str,
    user: Template,
    *needs: str,
    from_step: str | None = None,
    system: str | None = None,
    schema: Mapping[str, JsonValue] | None = None,
) -> Step:
    verb = Gen(from_step, template(system) if system else None, user, SamplingSpec(), schema)
    return Step(step_name, verb, frozenset(needs), AnyType(), HERE)


def analyst(limit: int | None = None) -> Program:
    draft = gen("draft", template("Explore ", name("angle")), from_step="angles")
    body = Block({"draft": draft}, expression(name("draft")))
    fan = ForEach("angle", expression(name("angles")), limit, body)
    steps = [
        gen(
            "angles",
            template("Topic: ", FieldOf(0, 0, name("inputs"), "topic", 0)),
            system="Be careful.",
            schema={"type": "array"},
        ),
        Step("explore", fan, frozenset({"angles"}), AnyType(), HERE),
        gen("report", template("Merge ", name("explore")), "angles", "explore", from_step="angles"),
    ]
    output = Output("report", expression(name("report")), HERE)
    return Program("analyst", "analyst.yaml", {}, {s.name: s for s in steps}, {"report": output})


def validate(text: str, schema: Mapping[str, JsonValue]) -> JsonValue:
    del schema
    value: JsonValue = json.loads(text)
    return value


class StillClock(MonotonicClock):
    def now(self) -> float:
        return 0.0


def begin(backend: ScriptBackend, limit: int | None = None) -> AbstractAsyncContextManager[Run]:
    inputs: dict[str, JsonValue] = {"topic": "bicycles"}
    return start(analyst(limit), inputs, backend, clock=StillClock(), validate=validate, seed=SEED)


async def all_events(run: Run) -> list[Event]:
    return [event async for event in run.events()]


async def test_a_run_gives_its_outputs_and_numbers_every_event() -> None:
    backend = ScriptBackend(ANSWERS)

    async with begin(backend) as run:
        events = await all_events(run)
        outputs = await run.result()

    assert {"report": "all of it matters"} == outputs
    assert list(range(len(events))) == [event.seq for event in events]
    assert isinstance(events[0].fact, RunStarted)
    assert isinstance(events[-1].fact, RunFinished)
    assert 0 == backend.num_open


async def test_branches_continue_the_conversation_they_fork_and_not_each_other() -> None:
    backend = ScriptBackend(ANSWERS)

    async with begin(backend) as run:
        await run.result()

    shared = 'system: Be careful.\nuser: Topic: bicycles\nassistant: ["cost", "range", "law"]\n'
    texts = {prompt.label: prompt.text for prompt in backend.prompts}
    assert shared + "user: Explore range" == texts["explore[1]/draft"]
    merged = '["cost matters", "range matters", "law matters"]'
    assert shared + f"user: Merge {merged}" == texts["report"]


async def test_results_keep_item_order_when_branches_end_in_another() -> None:
    gates = [anyio.Event() for _ in range(3)]
    answers = dict(ANSWERS)
    for idx, gate in enumerate(gates):
        answers[f"explore[{idx}]/draft"] = ScriptedAnswer(f"draft {idx}", gate=gate)
    backend = ScriptBackend(answers)
    finished: list[str] = []

    async with begin(backend) as run:
        async for event in run.events():
            if isinstance(event.fact, StepStarted) and event.fact.path == "explore[2]/draft":
                gates[2].set()
            if isinstance(event.fact, StepFinished):
                finished.append(event.fact.path)
                if event.fact.path == "explore[2]/draft":
                    gates[1].set()
                if event.fact.path == "explore[1]/draft":
                    gates[0].set()
                if event.fact.path == "explore":
                    assert ["draft 0", "draft 1", "draft 2"] == event.fact.value

    assert ["explore[2]/draft", "explore[1]/draft", "explore[0]/draft"] == finished[1:4]


async def test_limit_bounds_the_branches_that_run_at_a_time() -> None:
    running = 0
    peak = 0

    async with begin(ScriptBackend(ANSWERS), limit=2) as run:
        async for event in run.events():
            if isinstance(event.fact, StepStarted) and "draft" in event.fact.path:
                running += 1
                peak = max(peak, running)
            if isinstance(event.fact, StepFinished) and "draft" in event.fact.path:
                running -= 1

    assert 2 == peak


async def test_an_empty_list_gives_an_empty_result_at_once() -> None:
    backend = ScriptBackend({"angles": "[]", "report": "nothing"})

    async with begin(backend) as run:
        events = await all_events(run)

    values = {e.fact.path: e.fact.value for e in events if isinstance(e.fact, StepFinished)}
    assert [] == values["explore"]
    assert 0 == backend.num_open


async def test_prefilled_tokens_equal_the_unique_tokens_of_all_prompts() -> None:
    backend = ScriptBackend(ANSWERS)

    async with begin(backend) as run:
        terminal = (await all_events(run))[-1].fact

    assert isinstance(terminal, RunFinished)
    assert terminal.accounting.unique_prompt_tokens == terminal.accounting.prefilled_tokens
    assert terminal.accounting.reused_tokens > 0


async def test_every_failed_branch_is_reported_with_its_path() -> None:
    answers = dict(ANSWERS)
    for idx in (0, 2):
        answers[f"explore[{idx}]/draft"] = ScriptedAnswer(error=EngineError("EN900", f"lost {idx}"))
    backend = ScriptBackend(answers)

    with pytest.raises(RunFailedError) as caught:
        async with begin(backend) as run:
            await run.result()

    assert {"explore[0]/draft", "explore[2]/draft"} == {f.path for f in caught.value.failures}
    assert isinstance(caught.value.__cause__, EngineError)
    assert 0 == backend.num_open


async def test_the_first_failure_stops_the_other_branches() -> None:
    never = anyio.Event()
    answers = dict(ANSWERS)
    answers["explore[0]/draft"] = ScriptedAnswer("never", gate=never)
    answers["explore[1]/draft"] = ScriptedAnswer(error=EngineError("EN900", "lost"))
    backend = ScriptBackend(answers)

    async with begin(backend) as run:
        terminal = (await all_events(run))[-1].fact

    assert isinstance(terminal, RunFailed)
    assert ["explore[1]/draft"] == [failure.path for failure in terminal.failures]
    assert 0 == backend.num_open


async def test_a_cut_off_json_answer_is_a_failure_and_never_half_a_value() -> None:
    backend = ScriptBackend({"angles": ScriptedAnswer('["cost", "ra', finish_reason="length")})

    with pytest.raises(RunFailedError) as caught:
        async with begin(backend) as run:
            await run.result()

    error = caught.value.failures[0].error
    assert isinstance(error, WorkflowError)
    assert "WF501" == error.code
    assert "max_tokens" in str(error.help)


async def test_a_missing_answer_of_a_script_names_the_step() -> None:
    answers = {label: answer for label, answer in ANSWERS.items() if label != "report"}

    with pytest.raises(RunFailedError, match=r"no answer for step 'report'"):
        async with begin(ScriptBackend(answers)) as run:
            await run.result()


async def test_a_fault_of_the_backend_is_an_internal_error_with_its_cause() -> None:
    backend = ScriptBackend({"angles": ScriptedAnswer(error=ZeroDivisionError("by zero"))})

    with pytest.raises(RunFailedError) as caught:
        async with begin(backend) as run:
            await run.result()

    error = caught.value.failures[0].error
    assert "IN508" == error.code
    assert isinstance(error.__cause__, ZeroDivisionError)


async def test_cancel_ends_the_stream_and_result_says_so() -> None:
    never = anyio.Event()
    backend = ScriptBackend({**ANSWERS, "report": ScriptedAnswer("never", gate=never)})

    async with begin(backend) as run:
        facts = []
        async for event in run.events():
            facts.append(event.fact)
            if isinstance(event.fact, StepStarted) and event.fact.path == "report":
                run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()

    assert isinstance(facts[-1], RunCancelled)
    assert 0 == backend.num_open


async def test_leaving_the_block_early_cancels_the_run() -> None:
    never = anyio.Event()
    backend = ScriptBackend({**ANSWERS, "report": ScriptedAnswer("never", gate=never)})

    async with begin(backend) as run:
        reader = run.events()

    assert isinstance([event async for event in reader][-1].fact, RunCancelled)
    assert 0 == backend.num_open


async def test_what_the_block_raises_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with begin(ScriptBackend(ANSWERS)):
            raise KeyError("mine")


async def test_a_late_reader_gets_the_whole_run_with_texts_joined() -> None:
    async with begin(ScriptBackend(ANSWERS)) as run:
        early = await all_events(run)
        late = await all_events(run)

    texts = [e.fact.text for e in late if isinstance(e.fact, StepText) and e.fact.path == "report"]
    assert ["all of it matters"] == texts
    not_text = [e for e in early if not isinstance(e.fact, StepText)]
    assert not_text == [e for e in late if not isinstance(e.fact, StepText)]
    assert sorted({e.seq for e in late}) == [e.seq for e in late]


async def test_every_event_is_a_json_object() -> None:
    async with begin(ScriptBackend(ANSWERS)) as run:
        lines = [json.dumps(event_as_json(event)) for event in await all_events(run)]

    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert {
        "seq": 0,
        "time_s": 0.0,
        "event": "run_started",
        "version": 1,
        "workflow": "analyst",
        "inputs": {"topic": "bicycles"},
        "seed": SEED,
    } == first
    assert ("run_finished", {"report": "all of it matters"}) == (last["event"], last["outputs"])


async def test_cancelling_the_host_at_each_point_leaves_nothing_open() -> None:
    """Cancel after 0, 1, 2 … turns of the loop, until the run gets to its end."""
    for num_turns in range(400):
        backend = ScriptBackend(ANSWERS)
        reader = None
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_after, num_turns, scope)
                async with begin(backend) as run:
                    reader = run.events()
                    await run.result()
                tasks.cancel_scope.cancel()
        assert 0 == backend.num_open
        if reader is not None:
            facts = [event.fact async for event in reader]
            ends = [f for f in facts if isinstance(f, RunFinished | RunFailed | RunCancelled)]
            assert [facts[-1]] == ends
        if not scope.cancelled_caught:
            return
    pytest.fail("the run never got to its end")


async def test_cancelling_the_run_at_each_point_leaves_nothing_open() -> None:
    for num_turns in range(400):
        backend = ScriptBackend(ANSWERS)
        async with begin(backend) as run:
            for _ in range(num_turns):
                await anyio.lowlevel.checkpoint()
            run.cancel()
            facts = [event.fact for event in await all_events(run)]
        assert 0 == backend.num_open
        if isinstance(facts[-1], RunFinished):
            return
        assert isinstance(facts[-1], RunCancelled)
    pytest.fail("the run never got to its end")


async def _cancel_after(num_turns: int, scope: anyio.CancelScope) -> None:
    for _ in range(num_turns):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


async def test_a_backend_that_cannot_close_fails_the_run() -> None:
    class Sticky(ScriptBackend):
        async def open(
            self, *, system: str | None = None, model: str | None = None
        ) -> Conversation:
            return StickyConversation(await super().open(system=system, model=model))

    with pytest.raises(RunFailedError, match="stuck"):
        async with begin(Sticky(ANSWERS)) as run:
            await run.result()


async def test_a_backend_that_is_gone_still_lets_the_run_end() -> None:
    class Gone(ScriptBackend):
        def statistics(self) -> BackendStatistics:
            raise EngineError("EN900", "the engine is gone")

    with pytest.raises(RunFailedError, match="the engine is gone"):
        async with begin(Gone(ANSWERS)) as run:
            await run.result()


class StickyConversation(PassingConversation):
    """Fails to close."""

    async def close(self) -> None:
        raise OSError("stuck")
