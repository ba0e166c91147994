"""Orders to cancel one step, branch or call of a run that goes on."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from durable_runs import CutWriter, durable_run
from programs import ask, block, call, expr, for_each, gen, program, set_, tool

import flowforge as ff
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.errors import EngineError, WorkflowError
from flowforge.flows.execution import start_flow
from flowforge.journal.journal import Journal
from flowforge.journal.records import RunBegun
from flowforge.journal.writer import JournalWriter
from flowforge.language.join_policies import Settle
from flowforge.language.program import Catch, Retry
from flowforge.runtime.events import StepCancelled, StepFailed, StepRetried, StepStarted
from flowforge.runtime.run import RunFailedError, start
from flowforge.runtime.run_journal import RunJournal
from flowforge.testing import script

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.events import Fact
    from flowforge.runtime.handle import RunHandle


def never_ends() -> ScriptedAnswer:
    return ScriptedAnswer("late", gate=anyio.Event())


async def until(run: RunHandle[Any], fact: type[Fact], path: str) -> None:
    """Return when this was told of a path."""
    async with aclosing(run.events().__aiter__()) as events:
        async for event in events:
            if isinstance(event.fact, fact) and getattr(event.fact, "path", None) == path:
                return
    raise AssertionError(f"the run ended without {fact.__name__} of {path!r}")


async def cancelled_in(
    workflow: Program, backend: ScriptBackend, path: str, begun: str, **options: Any
) -> tuple[Mapping[str, JsonValue], list[Fact]]:
    """Cancel `path` once `begun` runs; what the run comes to and told."""
    async with start(workflow, {}, backend, **options) as run:
        await until(run, StepStarted, begun)
        run.cancel_step(path)
        events = [event.fact async for event in run.events()]
        outputs = await run.result()
    assert 0 == backend.num_open
    return outputs, events


def each(join: Any = None) -> Program:
    options = {} if join is None else {"join": join}
    return program(for_each("each", '["a", "b"]', block(gen("g"), gen("h", "g")), **options))


async def test_a_branch_is_cancelled_alone_and_its_join_says_what_follows() -> None:
    backend = ScriptBackend({"each[0]/g": never_ends(), "*": "ok"})
    outputs, facts = await cancelled_in(each(Settle()), backend, "each[0]", "each[0]/g")

    ends: Any = outputs["each"]
    lost, kept = ends
    assert (False, "WF517") == (lost["ok"], lost["error"]["code"])
    assert (True, "ok") == (kept["ok"], kept["value"])
    assert StepCancelled("each[0]/g") in facts
    assert "each[0]/h" not in {getattr(fact, "path", None) for fact in facts}


async def test_under_join_all_a_cancelled_step_ends_the_others_and_the_run_fails() -> None:
    backend = ScriptBackend({"each[0]/g": never_ends(), "each[1]/g": never_ends()})
    with pytest.raises(RunFailedError, match=r"'each\[0\]/g' was cancelled by an order") as failed:
        await cancelled_in(each(), backend, "each[0]/g", "each[1]/g")

    assert ["each[0]/g"] == [failure.path for failure in failed.value.failures]


async def test_a_cancelled_step_is_caught_and_not_tried_again() -> None:
    keys = {
        "catch": Catch("error", (), expr("error.code")),
        "retry": Retry(3, 0.0, 1.0, 0.0, "none"),
    }
    backend = ScriptBackend({"a": never_ends()})
    outputs, facts = await cancelled_in(program(gen("a", keys=keys)), backend, "a", "a")

    assert {"a": "WF517"} == outputs
    assert not any(isinstance(fact, StepRetried) for fact in facts)


async def test_a_step_that_waits_for_its_next_try_is_cancelled() -> None:
    lost = ScriptedAnswer(error=EngineError("EN900", "lost"))
    keys = {"catch": Catch("error", (), expr("error.code"))}
    workflow = program(gen("a", keys={**keys, "retry": Retry(3, 3600.0, 1.0, 3600.0, "none")}))
    backend = ScriptBackend({"a": lost})
    async with start(workflow, {}, backend) as run:
        await until(run, StepRetried, "a")
        run.cancel_step("a")
        assert {"a": "WF517"} == await run.result()


async def test_a_question_and_a_call_are_cancelled_like_any_step() -> None:
    keys = {"catch": Catch("error", (), expr("error.code"))}
    tools = (tool("count", "sample_tools:count"),)
    workflow = program(
        ask("gate", keys=keys), call("waits", "count", keys=keys, delay_s="3600.0"), tools=tools
    )

    async def nobody_comes(question: object) -> str:
        await anyio.sleep_forever()
        raise AssertionError(question)

    async with start(workflow, {}, ScriptBackend({}), asker=nobody_comes) as run:
        await until(run, StepStarted, "gate")
        await until(run, StepStarted, "waits")
        run.cancel_step("gate")
        run.cancel_step("waits")
        assert {"gate": "WF517", "waits": "WF517"} == await run.result()


async def test_what_does_not_run_cannot_be_cancelled_and_a_near_miss_is_named() -> None:
    backend = ScriptBackend({"draft": never_ends()})
    workflow = program(gen("draft"), gen("last", "draft"))
    async with start(workflow, {}, backend) as run:
        await until(run, StepStarted, "draft")
        for path in ("last", "drat", ""):
            with pytest.raises(WorkflowError, match="WF518"):
                run.cancel_step(path)
        with pytest.raises(WorkflowError, match="did you mean 'draft'"):
            run.cancel_step("drat")
        run.cancel()


async def test_a_run_cut_behind_a_cancelled_step_does_not_run_it_again(tmp_path: Path) -> None:
    keys = {"catch": Catch("error", (), expr("error.code"))}
    workflow = program(gen("a", keys=keys), set_("kept", "a", "a"), gen("b", "kept"))
    num_told = 0
    for last in range(1, 20):
        path = tmp_path / f"{last}.db"
        if await _cut_after_cancel(path, workflow, last):
            break
        with Journal(path) as journal:
            was_told = any(work.kind == "order" for work in journal.works("r"))
            backend = ScriptBackend({"a": "written", "b": "B"})
            writer = JournalWriter(journal)
            async with durable_run(writer, workflow, {}, is_resumed=True, backend=backend) as run:
                outputs = await run.result()
        assert ("WF517" if was_told else "written") == outputs["kept"]
        num_told += was_told
    assert num_told > 1


async def _cut_after_cancel(path: Path, workflow: Program, last: int) -> bool:
    with Journal(path) as journal:
        backend = ScriptBackend({"a": never_ends(), "b": "B"})
        try:
            async with durable_run(CutWriter(journal, last), workflow, {}, backend=backend) as run:
                await until(run, StepStarted, "a")
                run.cancel_step("a")
                await run.result()
        except (RunFailedError, AssertionError):
            return journal.run("r").status == "done"
        return True


async def test_a_run_that_failed_by_an_order_tries_the_step_again_when_resumed(
    tmp_path: Path,
) -> None:
    workflow = each()
    with Journal(tmp_path / "j.db") as journal:
        writer = JournalWriter(journal)
        backend = ScriptBackend({"each[0]/g": never_ends(), "*": "ok"})
        with pytest.raises(RunFailedError):
            async with durable_run(writer, workflow, {}, backend=backend) as run:
                await until(run, StepStarted, "each[0]/g")
                run.cancel_step("each[0]")
                await run.result()
        backend = ScriptBackend({"*": "ok"})
        async with durable_run(writer, workflow, {}, is_resumed=True, backend=backend) as run:
            assert {"each": ["ok", "ok"]} == await run.result()


# -- flows -----------------------------------------------------------------------------------------


@ff.flow
async def careful(run: ff.Run) -> str:
    async with run.chat() as chat:
        chat.user("Write.")
        try:
            first = await chat.gen(name="first")
        except WorkflowError as error:
            first = error.code
        chat.user("Go on after {first}.", first=first)
        return first + " " + await chat.gen(name="second")


async def test_a_step_of_a_flow_is_cancelled_alone() -> None:
    async with ff.start(careful, backend=script({"first": never_ends(), "second": "end"})) as run:
        await until(run, StepStarted, "first")
        with pytest.raises(WorkflowError, match="did you mean 'first'"):
            run.cancel_step("first2")
        run.cancel_step("first")
        events = [event.fact async for event in run.events()]
        assert "WF517 end" == await run.result()

    (failed,) = (fact for fact in events if isinstance(fact, StepFailed))
    assert ("first", "WF517") == (failed.path, failed.code)


async def test_a_flow_cut_behind_a_caught_cancel_meets_it_again(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.db") as journal:
        writer = JournalWriter(journal)
        begun = RunBegun("careful", "flows.py:careful", {}, 7, {}, {}, time.time())
        first = RunJournal.begin(writer, "r", begun)
        backend = script({"first": never_ends(), "second": never_ends()})
        async with start_flow(careful, {}, backend, seed=7, journal=first) as run:
            await until(run, StepStarted, "first")
            run.cancel_step("first")
            await until(run, StepStarted, "second")
        backend = script({"first": "written", "second": "end"})
        again = RunJournal.resume(writer, "r", {})
        async with start_flow(careful, {}, backend, seed=7, journal=again) as run:
            assert "WF517 end" == await run.result()
