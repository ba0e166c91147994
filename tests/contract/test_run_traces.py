"""Runs as OpenTelemetry traces: parents, usage, attempts and failures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
import sample_tools
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.errors import EngineError
from flowforge.grammars.tool_formats import ToolCall
from flowforge.language.loader import load_text, require_program
from flowforge.runtime.events import (
    Event,
    RunResumed,
    RunStarted,
    StepCancelled,
    StepFinished,
    StepStarted,
)
from flowforge.runtime.run import RunCancelledError, RunFailedError, start
from flowforge.telemetry.run_spans import RunSpans
from flowforge.telemetry.tracing import trace_run, traced

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from flowforge.runtime.events import Fact

SUPPORT = Path(sample_tools.__file__).parent

WORKFLOW = """\
flowforge: 1
name: traced
tools:
  add: { python: 'sample_tools:add', effect: read }
steps:
  plan: { user: CANARY-PROMPT, gen: }
  explore:
    for: angle in ["left", "right"]
    do:
      draft: { from: plan, user: "${ angle }", gen: }
      sum: { call: add, with: { left: 1, right: 2 } }
      both: { set: "${ draft } ${ sum }" }
    yield: ${ both }
    join: settle
  votes: { user: pick, gen: { n: 2, pick: all } }
  agent: { user: add, gen: { tools: [add] } }
outputs: { agent: "${ agent }" }
"""
RETRIED = """\
flowforge: 1
name: retried
steps:
  a:
    user: hi
    gen:
    retry: { attempts: 2, backoff: 1ms }
outputs: { a: "${ a }" }
"""


def in_memory() -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


async def spans_of(text: str, backend: ScriptBackend) -> tuple[ReadableSpan, ...]:
    provider, exporter = in_memory()
    program = require_program(load_text(text, str(SUPPORT / "t.yaml")))
    async with start(program, {}, backend, seed=1) as running:
        await trace_run(running, provider.get_tracer("test"), run_id="r1")
    return exporter.get_finished_spans()


def parents(spans: tuple[ReadableSpan, ...]) -> set[tuple[str, str | None]]:
    """Each span by its name and step path, with its parent."""
    names = {one.context.span_id: label(one) for one in spans if one.context is not None}
    return {(label(one), names[one.parent.span_id] if one.parent else None) for one in spans}


def label(span: ReadableSpan) -> str:
    path = told(span).get("flowforge.step.path")
    is_leaf = span.name.startswith(("chat", "execute_tool"))
    return f"{span.name} @ {path}" if is_leaf else span.name


def told(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def broken() -> ScriptedAnswer:
    return ScriptedAnswer(error=EngineError("EN403", "lost"))


def canary_backend() -> ScriptBackend:
    call = ScriptedAnswer(calls=(ToolCall("add", {"left": 1, "right": 2}),))
    return ScriptBackend({"agent": [call, "three"], "*": "CANARY-ANSWER"})


async def test_spans_have_the_parents_that_their_paths_say() -> None:
    spans = await spans_of(WORKFLOW, canary_backend())

    run = "invoke_workflow traced"
    expected: set[tuple[str, str | None]] = {(run, None)}
    expected |= {(f"step {one}", run) for one in ("plan", "explore", "votes", "agent")}
    expected |= {("chat @ plan", "step plan"), ("chat @ agent", "step agent")}
    expected |= {(f"chat @ votes[{k}]", "step votes") for k in (0, 1)}
    expected |= {("execute_tool add @ agent/add[0]", "step agent")}
    for k in (0, 1):
        steps = [f"step explore[{k}]/{name}" for name in ("draft", "sum", "both")]
        expected |= {(one, "step explore") for one in steps}
        expected |= {(f"chat @ explore[{k}]/draft", f"step explore[{k}]/draft")}
    assert expected == parents(spans)
    assert 1 == len({one.context.trace_id for one in spans if one.context is not None})


async def test_tokens_are_told_of_generations_alone_and_no_text_of_anything() -> None:
    spans = await spans_of(WORKFLOW, canary_backend())

    with_usage = [one for one in spans if any("usage" in key for key in told(one))]
    assert {"chat"} == {one.name for one in with_usage}
    assert 6 == len(with_usage)
    inner = {one.parent.span_id for one in spans if one.parent is not None}
    assert not [one for one in with_usage if one.context and one.context.span_id in inner]
    assert "CANARY" not in "".join(one.to_json() for one in spans)


async def test_a_failed_try_is_a_span_with_its_code_and_the_next_is_another() -> None:
    spans = await spans_of(RETRIED, ScriptBackend({"a": [broken(), "yes"]}))

    steps = {one.name: one for one in spans if one.name.startswith("step")}
    assert {"step a", "step a#2"} == set(steps)
    assert StatusCode.ERROR is steps["step a"].status.status_code
    assert "EN403" == told(steps["step a"])["error.type"]
    assert StatusCode.UNSET is steps["step a#2"].status.status_code
    failed = next(one for one in spans if label(one) == "chat @ a")
    assert StatusCode.ERROR is failed.status.status_code


async def test_branches_of_a_later_try_lie_in_that_try() -> None:
    tried = ScriptedAnswer(error=EngineError("EN403", "lost"))

    spans = await spans_of(
        "flowforge: 1\nname: t\nsteps:\n  each:\n    for: one in [1]\n"
        "    retry: { attempts: 2, backoff: 1ms }\n    do: { a: { user: hi, gen: } }\n",
        ScriptBackend({"each[0]/a": [tried, "yes"]}),
    )

    found = {name: parent for name, parent in parents(spans) if name.endswith("/a")}
    expected = {"step each[0]/a": "step each", "step each#2[0]/a": "step each#2"}
    assert expected == {name: found[name] for name in found if name.startswith("step")}


async def test_a_failed_run_says_which_step_failed() -> None:
    spans = await spans_of(RETRIED, ScriptBackend({"a": [broken(), broken()]}))

    run = next(one for one in spans if one.parent is None)
    assert StatusCode.ERROR is run.status.status_code
    assert "a#2: lost" == run.status.description


async def test_a_cancelled_run_ends_every_span() -> None:
    provider, exporter = in_memory()
    program = require_program(load_text("flowforge: 1\nname: t\nsteps: { a: { ask: well? } }\n"))

    async def never(question: object) -> str:
        running.cancel()
        await anyio.sleep_forever()
        raise AssertionError

    async with (
        start(program, {}, ScriptBackend({}), asker=never) as running,
        traced(running, provider, None, lambda: 0),
    ):
        with pytest.raises(RunCancelledError):
            await running.result()

    spans = exporter.get_finished_spans()
    assert {"invoke_workflow t", "step a"} == {one.name for one in spans}
    run = next(one for one in spans if one.parent is None)
    assert True is told(run)["flowforge.cancelled"]


async def test_what_the_block_raises_is_raised_as_it_is() -> None:
    provider, _ = in_memory()
    program = require_program(load_text(RETRIED))

    with pytest.raises(RunFailedError):
        async with (
            start(program, {}, ScriptBackend({"a": [broken(), broken()]})) as running,
            traced(running, provider, None, lambda: 0),
        ):
            await running.result()


def test_a_resumed_run_has_no_span_of_what_was_done_before() -> None:
    provider, exporter = in_memory()
    spans = RunSpans(provider.get_tracer("test"), lambda: 10_000_000_000, run_id="r", first=4)

    facts: list[Fact] = [
        RunStarted("w", {}),
        StepStarted("old", "gen"),
        StepFinished("old", "x"),
        StepStarted("cut", "gen"),
        RunResumed(1, ("cut",)),
        StepFinished("cut", "y"),
        StepCancelled("never-began"),
    ]
    for seq, fact in enumerate(facts):
        spans.take(Event(seq, float(seq), fact))
    spans.close()

    ended = exporter.get_finished_spans()
    assert {"step cut", "chat", "invoke_workflow w"} == {one.name for one in ended}
    run = next(one for one in ended if one.parent is None)
    assert (True, 1) == (
        told(run)["flowforge.run.resumed"],
        told(run)["flowforge.run.num_kept"],
    )
