"""Python functions as tools: arguments, results, time, threads, failures; on asyncio and trio."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import sample_tools
from programs import block, call, for_each, gen, program, set_, tool

from flowforge.backends.script import ScriptBackend
from flowforge.errors import ToolError
from flowforge.language.program import Catch, Retry
from flowforge.runtime.clock import MonotonicClock
from flowforge.runtime.events import RunCancelled, StepFailed, StepRetried, StepStarted
from flowforge.runtime.run import RunFailedError, start
from flowforge.tools.arguments import Arguments
from flowforge.tools.function_tool import FunctionTool
from flowforge.tools.loading import load_function

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.events import Event


def made(function: str, **options: Any) -> FunctionTool:
    spec = tool(function, f"sample_tools:{function}", **options)
    return FunctionTool(spec, load_function(spec, Path.cwd()))


async def outputs_of(workflow: Program) -> Mapping[str, JsonValue]:
    async with start(workflow, {}, ScriptBackend({"*": "text"}), seed=1) as run:
        return await run.result()


async def events_of(workflow: Program, **options: Any) -> list[Event]:
    async with start(workflow, {}, ScriptBackend({"*": "text"}), seed=1, **options) as run:
        return [event async for event in run.events()]


async def test_a_blocking_and_an_async_function_give_json_values() -> None:
    assert 5 == await made("add").call({"left": 2, "right": 3}, "s")
    assert 3 == await made("add").call({"left": 2}, "s")
    assert {"text": "Dear Ann"} == await made("greet").call({"name": "Ann"}, "s")
    assert "Monday" == await made("weekday").call({"day": "2026-11-30"}, "s")


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        ("add", {"left": "2"}, "left: input should be a valid integer"),
        ("add", {}, "argument 'left' is missing"),
        ("add", {"left": 1, "wrong": 2}, "unknown argument 'wrong', it takes left, right"),
        ("greet", {"name": "x", "manner": "rude"}, "manner: input should be 'kind' or 'curt'"),
    ],
)
async def test_arguments_that_do_not_fit_never_reach_the_function(
    function: str, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ToolError, match=reason) as caught:
        await made(function).call(arguments, "s")

    assert "TL103" == caught.value.code


async def test_arguments_also_obey_the_schema_of_the_file() -> None:
    schema = {"type": "object", "properties": {"left": {"maximum": 9}}}

    with pytest.raises(ToolError, match="10 is greater than the maximum of 9"):
        await made("add", parameters=schema).call({"left": 10}, "s")


async def test_what_a_function_raises_is_told_with_its_cause_and_the_step() -> None:
    with pytest.raises(ToolError, match="called by 'a/b', raised ValueError: no") as caught:
        await made("fail").call({"reason": "no"}, "a/b")

    assert "TL201" == caught.value.code
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_result_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(ToolError, match="returned object, which is no JSON value") as caught:
        await made("number").call({}, "s")

    assert "TL104" == caught.value.code


@pytest.mark.parametrize("name", ["missing", "NOT_A_FUNCTION"])
def test_a_tool_that_is_not_there_is_refused_before_the_run(name: str) -> None:
    spec = tool("t", f"sample_tools:{name}")

    with pytest.raises(ToolError, match="cannot be loaded") as caught:
        load_function(spec, Path.cwd())

    assert "TL101" == caught.value.code


def test_a_parameter_without_a_name_is_refused() -> None:
    with pytest.raises(ToolError, match="cannot be a tool") as caught:
        made("positional")

    assert "TL102" == caught.value.code


def test_the_schema_of_the_arguments_comes_from_the_type_hints() -> None:
    schema = Arguments(sample_tools.greet).json_schema()

    assert ["name"] == schema["required"]
    assert schema["additionalProperties"] is False


def test_a_tool_is_found_beside_the_workflow_file(tmp_path: Path) -> None:
    (tmp_path / "only_here_abc.py").write_text("def f() -> int:\n    return 7\n", encoding="utf-8")

    function = load_function(tool("t", "only_here_abc:f"), tmp_path)

    assert 7 == function()


async def test_a_timeout_around_a_blocking_tool_fires_and_the_late_result_is_dropped() -> None:
    """WF-060."""
    sample_tools.fresh()
    slow = tool("slow", "sample_tools:block", timeout_s=0.2)
    began_s = time.monotonic()

    events = await events_of(program(call("a", "slow"), tools=(slow,)))

    assert time.monotonic() - began_s < 5
    failed = [event.fact for event in events if isinstance(event.fact, StepFailed)]
    assert [("a", "TL202")] == [(fact.path, fact.code) for fact in failed]
    sample_tools.LATE.set()


async def test_a_step_timeout_around_a_blocking_tool_is_reported_as_a_timeout() -> None:
    """WF-060."""
    sample_tools.fresh()
    slow = tool("slow", "sample_tools:block")
    step = call("a", "slow", keys={"timeout_s": 0.2})

    events = await events_of(program(step, tools=(slow,)))

    failed = [event.fact for event in events if isinstance(event.fact, StepFailed)]
    assert [("a", "WF504")] == [(fact.path, fact.code) for fact in failed]
    sample_tools.LATE.set()


async def test_a_call_that_was_given_up_still_counts_and_one_that_waits_for_it_never_begins() -> (
    None
):
    tally = sample_tools.fresh()
    slow = made("block", timeout_s=0.1, concurrency=1)

    for _ in range(2):
        with pytest.raises(ToolError, match="within its timeout"):
            await slow.call({}, "s")
    sample_tools.LATE.set()

    assert "late" == await slow.call({}, "s")
    assert 2 == tally.num_calls


async def test_a_tool_that_swallows_cancellation_three_times_still_ends() -> None:
    tally = sample_tools.fresh()
    stubborn = tool("stubborn", "sample_tools:swallow")
    workflow = program(call("a", "stubborn", times="3"), tools=(stubborn,))

    facts: list[object] = []
    async with start(workflow, {}, ScriptBackend({}), seed=1) as run:
        async for event in run.events():
            facts.append(event.fact)
            if isinstance(event.fact, StepStarted):
                await anyio.wait_all_tasks_blocked()
                run.cancel()

    assert isinstance(facts[-1], RunCancelled)
    assert 3 == tally.num_swallowed


async def test_a_tool_that_swallows_its_timeout_is_still_reported_as_timed_out() -> None:
    sample_tools.fresh()

    with pytest.raises(ToolError, match="within its timeout"):
        await made("swallow", timeout_s=0.05).call({"times": 2}, "s")


async def test_calls_at_one_time_are_limited() -> None:
    tally = sample_tools.fresh()
    counting = tool("counting", "sample_tools:count", concurrency=2)
    body = block(call("c", "counting", delay_s="0.005"))
    workflow = program(for_each("a", "[1, 2, 3, 4, 5, 6]", body), tools=(counting,))

    await outputs_of(workflow)

    assert 2 == tally.peak


class HastyClock(MonotonicClock):
    """Notes how long it should have slept."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    async def sleep(self, delay_s: float) -> None:
        self.delays.append(delay_s)
        await anyio.lowlevel.checkpoint()


async def test_a_transient_failure_is_tried_again_after_its_backoff_and_wrong_arguments_never() -> (
    None
):
    """WF-058."""
    sample_tools.fresh()
    clock = HastyClock()
    retry = Retry(3, 0.2, 2.0, 60.0, "none")
    flaky, add = tool("flaky", "sample_tools:flaky", 1), tool("add", "sample_tools:add", 2)
    good = call("up", "flaky", failures="2", keys={"retry": retry})
    caught = Catch("error", (), set_("v", "error.code").verb.value)  # type: ignore[union-attr]
    bad = call("bad", "add", left='"x"', keys={"retry": retry, "catch": caught})

    events = await events_of(program(good, bad, tools=(flaky, add)), clock=clock)

    assert [0.2, 0.4] == clock.delays
    retried = [event.fact for event in events if isinstance(event.fact, StepRetried)]
    assert [("up", "up#2"), ("up#2", "up#3")] == [(one.path, one.next_path) for one in retried]
    assert {"up": "up", "bad": "TL103"} == getattr(events[-1].fact, "outputs", None)


async def test_cancelling_at_each_point_leaves_no_conversation_open_and_no_call_running() -> None:
    tools = (tool("greet", "sample_tools:greet", 1), tool("count", "sample_tools:count", 2))
    body = block(call("c", "greet", name="item"), gen("g", "c", from_step="first"))
    workflow = program(
        gen("first"),
        for_each("all", '["a", "b"]', body, "first", finally_block=block(gen("f"))),
        gen("many", "first", from_step="first", n=3),
        call("counted", "count", "all"),
        tools=tools,
    )
    for num_turns in range(400):
        tally = sample_tools.fresh()
        backend = ScriptBackend({"*": "text"})
        async with start(workflow, {}, backend, seed=1) as run:
            for _ in range(num_turns):
                await anyio.lowlevel.checkpoint()
            run.cancel()
            last = [event.fact async for event in run.events()][-1]
        assert (0, 0) == (backend.num_open, tally.num_running)
        if not isinstance(last, RunCancelled):
            return
    pytest.fail("the run never got to its end")


async def test_a_tool_failure_names_the_step_that_called() -> None:
    failing = tool("fail", "sample_tools:fail")
    body = block(call("c", "fail", reason="item"))

    with pytest.raises(RunFailedError) as caught:
        await outputs_of(program(for_each("all", '["x"]', body), tools=(failing,)))

    assert ["all[0]/c"] == [failure.path for failure in caught.value.failures]


async def test_forty_tools_that_each_wait_for_one_more_thread_all_end() -> None:
    """REL-019."""
    nested = made("nested")
    sums: list[object] = []

    async def call_one() -> None:
        sums.append(await nested.call({}, "s"))

    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(call_one)

    assert [2] * 40 == sums
