"""Workflows as tools of a chat's model: flows, files, what they cost and how they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

import flowforge as ff
from flowforge.backends.protocol import GenerateRequest
from flowforge.runtime.events import (
    RunFinished,
    StepCancelled,
    StepFailed,
    StepFinished,
    StepStarted,
    ToolReturned,
)
from flowforge.testing import calls, in_turn, script

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.backends.script import ScriptBackend
    from flowforge.flows.tool_turns import ModelTool
    from flowforge.runtime.events import Fact

SUBFLOW = """\
flowforge: 1
name: shout
inputs: { word: string, times: { type: integer, default: 1 } }
steps:
  draft: { user: 'Say ${ inputs.word }', gen: }
  loud: { set: '${ draft | upper }' }
outputs: { loud: '${ loud }' }
"""


@ff.flow
async def summarize(run: ff.Run, text: str, words: int = 10) -> dict[str, str]:
    """Shorten a text.

    Args:
        text: What is too long.
        words: At most so many.
    """
    if text == "boom":
        raise OSError("no disk")
    async with run.chat() as chat:
        chat.user("Shorten: {text}", text=text)
        return {"short": await chat.gen(name="draft")}


@ff.flow
async def endless(run: ff.Run) -> str:
    await anyio.sleep_forever()
    return ""


def agent(*tools: ModelTool, **options: Any) -> ff.Flow[[], str]:
    @ff.flow
    async def agent(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Go.")
            return await chat.gen(tools=tools, name="answer", **options)

    return agent


async def told(flow: ff.Flow[[], str], backend: ScriptBackend) -> list[Fact]:
    async with ff.start(flow, backend=backend, seed=1) as handle:
        facts = [event.fact async for event in handle.events()]
        await handle.result()
    assert backend.num_open == 0
    return facts


def returned(facts: list[Fact]) -> list[Any]:
    return [fact.result for fact in facts if isinstance(fact, ToolReturned)]


@pytest.fixture
def shout(tmp_path: Path) -> Path:
    path = tmp_path / "shout.yaml"
    path.write_text(SUBFLOW)
    return path


async def test_a_flow_is_called_with_its_inputs_and_its_steps_are_the_runs() -> None:
    call = calls(("summarize", {"text": "long", "words": 3}), ("summarize", {"text": "longer"}))
    answers = {"answer": in_turn(call, "done"), "answer/summarize[*]/draft": "brief"}

    facts = await told(agent(ff.workflow(summarize, effect="read")), script(answers))

    assert returned(facts) == [{"short": "brief"}] * 2
    finished = [fact.path for fact in facts if isinstance(fact, StepFinished)]
    assert sorted(finished) == sorted(
        [
            "answer/summarize[0]/draft",
            "answer/summarize[0]",
            "answer/summarize[1]/draft",
            "answer/summarize[1]",
            "answer",
        ]
    )


async def test_a_workflow_file_is_called_with_its_inputs_and_costs_what_it_costs(
    shout: Path,
) -> None:
    call = calls(("shout", {"word": "hey"}))
    backend = script({"answer": in_turn(call, "done"), "answer/shout[0]/draft": "hello you"})

    facts = await told(agent(ff.workflow(shout, effect="read")), backend)

    assert returned(facts) == [{"loud": "HELLO YOU"}]
    finished = {fact.path: fact.value for fact in facts if isinstance(fact, StepFinished)}
    assert finished["answer/shout[0]/loud"] == "HELLO YOU"
    started = [fact.path for fact in facts if isinstance(fact, StepStarted)]
    assert started[:3] == ["answer", "answer/shout[0]", "answer/shout[0]/draft"]
    end = facts[-1]
    assert isinstance(end, RunFinished)
    assert end.accounting.generated_tokens == backend.statistics().generated_tokens == 3
    assert end.accounting.prefilled_tokens == end.accounting.unique_prompt_tokens


async def test_models_are_told_inputs_and_descriptions(shout: Path) -> None:
    tools = [
        ff.workflow(summarize),
        ff.workflow(shout, name="cry", description="Cries out."),
    ]
    backend = script({"answer": "done"})

    await told(agent(*tools), backend)

    request = backend.prompts[0].request
    assert isinstance(request, GenerateRequest)
    assert request.offer is not None
    first, second = request.offer.tools
    assert (first.name, first.description) == ("summarize", "Shorten a text.")
    assert first.parameters == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What is too long."},
            "words": {"type": "integer", "description": "At most so many."},
        },
        "required": ["text"],
        "additionalProperties": False,
    }
    assert (second.name, second.description) == ("cry", "Cries out.")
    assert second.parameters["required"] == ["word"]


async def test_what_goes_wrong_inside_is_told_to_the_model(shout: Path) -> None:
    call = calls(
        ("summarize", {"text": "boom"}),
        ("summarize", {"texts": "x"}),
        ("shout", {"word": "hey"}),
        ("endless", {}),
    )
    failing = ff.ScriptedAnswer(error=ff.EngineError("EN999", "out of order"))
    backend = script({"answer": in_turn(call, "sorry"), "answer/shout[2]/draft": failing})
    tools = [
        ff.workflow(summarize, effect="read"),
        ff.workflow(shout, effect="read"),
        ff.workflow(endless, effect="read", timeout="10ms"),
    ]

    facts = await told(agent(*tools), backend)

    reasons = [one["error"] for one in returned(facts)]
    assert "no disk" in reasons[0]
    assert "do not fit" in reasons[1]
    assert "out of order" in reasons[2]
    assert "timeout of 0.01 s" in reasons[3]
    failed = {fact.path: fact.code for fact in facts if isinstance(fact, StepFailed)}
    assert failed == {
        "answer/summarize[0]": "TL201",
        "answer/summarize[1]": "TL103",
        "answer/shout[2]/draft": "EN999",
        "answer/shout[2]": "EN999",
        "answer/endless[3]": "TL202",
    }


async def test_a_failure_inside_fails_the_turn_where_it_says_so(shout: Path) -> None:
    call = calls(("shout", {"word": "hey"}))
    failing = ff.ScriptedAnswer(error=ff.EngineError("EN999", "out of order"))
    backend = script({"answer": call, "answer/shout[0]/draft": failing})
    flow = agent(ff.workflow(shout), on_tool_error="fail")

    with pytest.raises(ff.RunFailedError, match="out of order"):
        await told(flow, backend)


async def test_calls_of_one_workflow_at_one_time_are_limited(shout: Path) -> None:
    call = calls(*[("shout", {"word": "hey"})] * 3)
    backend = script({"answer": in_turn(call, "ok"), "answer/shout[*]/draft": "x"})
    flow = agent(ff.workflow(shout, effect="read", concurrency=1))

    facts = await told(flow, backend)

    seen = [
        fact.path
        for fact in facts
        if isinstance(fact, StepStarted | StepFinished) and fact.path.endswith("/draft")
    ]
    assert seen == [path for path in dict.fromkeys(seen) for _ in range(2)]


async def test_a_cancel_reaches_the_steps_of_a_called_workflow(shout: Path) -> None:
    call = calls(("shout", {"word": "hey"}))
    gate = anyio.Event()  # never set
    waiting = ff.ScriptedAnswer("late", gate=gate)
    backend = script({"answer": call, "answer/shout[0]/draft": waiting})

    facts: list[Fact] = []
    async with ff.start(agent(ff.workflow(shout)), backend=backend, seed=1) as handle:
        async for event in handle.events():
            facts.append(event.fact)
            if isinstance(event.fact, StepStarted) and event.fact.path.endswith("/draft"):
                handle.cancel()

    cancelled = [fact.path for fact in facts if isinstance(fact, StepCancelled)]
    assert cancelled == ["answer/shout[0]", "answer"]
    assert backend.num_open == 0


@pytest.mark.parametrize("name", ["two words", "a__b", "é"])
def test_a_workflow_has_a_name_that_a_tool_can_have(name: str) -> None:
    with pytest.raises(ff.WorkflowError, match="cannot be called"):
        ff.workflow(summarize, name=name)
