"""`chat.gen(tools=…)`: the rounds of a workflow's step, in a Python flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import pytest
from pydantic import Field

import flowforge as ff
from flowforge.backends.protocol import GenerateRequest
from flowforge.grammars.tool_formats import NamedTool
from flowforge.runtime.events import Fact, StepFinished, ToolReturned
from flowforge.testing import calls, in_turn, script

if TYPE_CHECKING:
    from flowforge.backends.script import ScriptBackend


@ff.tool(effect="read")
def add(left: int, right: int = 1) -> int:
    """Add two numbers.

    Args:
        left: The first one,
            whatever it is.
        right: The second one.
    """
    return left + right


@ff.tool(effect="read")
async def plate(number: Annotated[str, Field(pattern="^[A-Z]{2}[0-9]{3}$")]) -> str:
    """Look a plate up."""
    return f"owner of {number}"


@ff.tool(effect="read")
def shaky(works: bool) -> str:
    """Work or not."""
    if not works:
        raise OSError("503")
    return "up"


@ff.flow
async def agent(run: ff.Run, again: bool = False) -> str:
    async with run.chat() as chat:
        chat.user("What is 2 + 3?")
        answer = await chat.gen(tools=[add, plate], name="answer", choice=add, rounds=2)
        if again:
            chat.user("And now?")
            return await chat.gen(name="more")
        return answer


@ff.flow
async def strict(run: ff.Run) -> str:
    async with run.chat() as chat:
        chat.user("Go.")
        return await chat.gen(tools=[shaky], name="answer", on_tool_error="fail", retry=2)


async def told(backend: ScriptBackend, *, again: bool = False) -> list[Fact]:
    async with ff.start(agent, backend=backend, seed=1, again=again) as handle:
        facts = [event.fact async for event in handle.events()]
    assert backend.num_open == 0
    return facts


async def test_a_flow_calls_tools_until_the_model_answers() -> None:
    turns = in_turn(calls(("add", {"left": 2, "right": 3}), ("add", {"left": 9})), "five")
    backend = script({"answer": turns, "more": "six"})

    facts = await told(backend, again=True)

    returned = {one.path: one.result for one in facts if isinstance(one, ToolReturned)}
    assert returned == {"answer/add[0]": 5, "answer/add[1]": 10}
    finished = {one.path: one.value for one in facts if isinstance(one, StepFinished)}
    assert finished == {"answer/add[0]": 5, "answer/add[1]": 10, "answer": "five", "more": "six"}
    assert "tool: 5\ntool: 10\nassistant: five\nuser: And now?" in backend.prompts[-1].text


async def test_a_flow_tells_the_model_what_docstring_and_hints_say() -> None:
    backend = script({"answer": "five"})

    await told(backend)

    request = backend.prompts[0].request
    assert isinstance(request, GenerateRequest)
    assert request.offer is not None
    assert request.offer.choice == NamedTool("add")
    first, second = request.offer.tools
    assert first.description == "Add two numbers."
    properties = first.parameters["properties"]
    assert isinstance(properties, dict)
    assert properties["left"] == {
        "type": "integer",
        "description": "The first one, whatever it is.",
    }
    assert second.parameters["properties"] == {
        "number": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"}
    }


async def test_a_failed_call_is_told_and_the_last_round_must_answer() -> None:
    wrong = calls(("plate", {"number": "x"}))
    backend = script({"answer": in_turn(wrong, wrong, "never mind")})

    facts = await told(backend)

    assert [one.is_error for one in facts if isinstance(one, ToolReturned)] == [True, True]
    request = backend.prompts[-1].request
    assert isinstance(request, GenerateRequest)
    assert request.offer is not None
    assert request.offer.choice == "none"


async def test_a_failed_call_fails_the_turn_which_is_tried_again() -> None:
    wrong, right = calls(("shaky", {"works": False})), calls(("shaky", {"works": True}))
    backend = script({"answer": in_turn(wrong, right, "found")})

    async with ff.start(strict, backend=backend, seed=1) as handle:
        assert await handle.result() == "found"

    assert backend.num_open == 0


async def test_tools_that_cannot_be_used_are_refused() -> None:
    @ff.flow
    async def broken(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Go.")
            return await chat.gen(tools=[plate], choice=add)

    with pytest.raises(ff.FlowForgeError, match="not among the tools"):
        async with ff.start(broken, backend=script({}), seed=1) as handle:
            await handle.result()
