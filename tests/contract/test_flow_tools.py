"""`chat.gen(tools=…)`: the rounds of a workflow's step, in a Python flow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import Field, TypeAdapter, WithJsonSchema

import flowforge as ff
from flowforge.backends.protocol import GenerateRequest
from flowforge.grammars.tool_formats import NamedTool
from flowforge.language.answer_specs import AnswerOptions
from flowforge.runtime.events import Fact, StepFinished, StepRetried, ToolReturned
from flowforge.testing import calls, in_turn, script

if TYPE_CHECKING:
    from flowforge.backends.protocol import JsonValue
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


async def test_the_answer_behind_the_calls_has_the_type_that_is_asked_for() -> None:
    @ff.flow
    async def typed(run: ff.Run) -> list[object]:
        async with run.chat() as chat:
            chat.user("Go.")
            numbers = await chat.gen(list[int], tools=[add], name="numbers")
            text = await chat.gen(regex="[a-z]+", tools=[add], name="text")
            word = await chat.choose(["yes", "no"], tools=[add], name="word")
            parsed = await chat.parse("flowforge/arithmetic", tools=[add], name="parsed")
            return [numbers, text, word, parsed.text]

    call = calls(("add", {"left": 2}))
    answers = {"numbers": "[1, 2]", "text": "abc", "word": "no", "parsed": "1+2"}
    backend = script({name: in_turn(call, text) for name, text in answers.items()})

    async with ff.start(typed, backend=backend, seed=1) as handle:
        assert await handle.result() == [[1, 2], "abc", "no", "1+2"]

    asked = [one.request for one in backend.prompts if isinstance(one.request, GenerateRequest)]
    assert all(one.has_form and one.offer is not None for one in asked)
    assert (len(asked), backend.num_open) == (8, 0)


async def test_an_answer_is_held_to_its_form_as_strictly_as_the_chat_says() -> None:
    @ff.flow
    async def strict(run: ff.Run) -> int:
        async with run.chat() as chat:
            chat.user("Go.")
            return await chat.gen(
                Odd, name="n", on_cut="close", on_unsupported="relax", whitespace="bounded"
            )

    backend = script({"n": in_turn("2", "4", "7")})
    async with ff.start(strict, backend=backend, seed=1) as handle:
        facts = [event.fact async for event in handle.events()]
        assert await handle.result() == 7

    request = backend.prompts[0].request
    assert isinstance(request, GenerateRequest)
    assert request.options == AnswerOptions("relax", "bounded", "close")
    assert [fact.path for fact in facts if isinstance(fact, StepRetried)] == ["n", "n#2"]


ODD: JsonValue = {"type": "integer", "not": {"multipleOf": 2}}
Odd: TypeAdapter[int] = TypeAdapter(Annotated[int, WithJsonSchema(ODD)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"choice": "plat", "tools": [plate]}, "'plat' is to be called"),
        ({"rounds": 0, "tools": [plate]}, "at least 1"),
        ({"rounds": 3}, "the turn has none"),
        ({"stop": ["x"], "tools": [plate]}, "in its middle"),
        ({"on_cut": "close"}, "about an answer of a form"),
        ({"on_unsupported": "relax", "regex": "a"}, "about an answer of a type"),
        ({"on_cut": "never", "regex": "a"}, "'fail' or 'close'"),
        ({"tool": [plate]}, "unknown option 'tool'"),
    ],
)
async def test_options_that_mean_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    @ff.flow
    async def wrong(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Go.")
            return await chat.gen(**options)

    with pytest.raises(ff.FlowForgeError, match=words):
        async with ff.start(wrong, backend=script({"gen": "a"}), seed=1) as handle:
            await handle.result()


async def test_a_tool_may_be_named_by_its_name_and_a_text_is_judged_by_its_regex() -> None:
    @ff.flow
    async def named(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Go.")
            return await chat.gen(tools=[add], choice="add", regex="[0-9]+", name="n")

    backend = script({"n": in_turn(calls(("add", {"left": 2})), "x")})
    with pytest.raises(ff.FlowForgeError, match="regex does not match"):
        async with ff.start(named, backend=backend, seed=1) as handle:
            await handle.result()

    request = backend.prompts[0].request
    assert isinstance(request, GenerateRequest)
    assert request.offer is not None
    assert request.offer.choice == NamedTool("add")


async def test_calls_of_a_turn_that_was_cut_within_one_are_not_made() -> None:
    cut = replace(calls(("add", {"left": 2})), finish_reason="length")
    backend = script({"answer": in_turn(cut, "never")})

    with pytest.raises(ff.RunFailedError, match="within a call"):
        async with ff.start(agent, backend=backend, seed=1) as handle:
            await handle.result()

    assert len(backend.prompts) == 1
