"""Tools over HTTP: choices, calls in streams as clients join them, results that come back."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from served import MODEL, Served


def tool(name: str, **properties: Any) -> Any:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("f", a={"type": "integer"}), tool("g", b={"enum": ["x", "y"]})]
# What no mask can hold an answer to.
LOOSE = {"type": "array", "items": {"type": "string"}, "contains": {"pattern": "a$"}}
# The stand-in's template knows no tools: calls are written in the plain form.
F_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
G_CALL = '<tool_call>\n{"name": "g", "arguments": {"b": "y"}}\n</tool_call>'


def ask(client: openai.OpenAI, said: str, choice: Any = "auto", **more: Any) -> Any:
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"say {said}"}],
        tools=TOOLS,
        tool_choice=choice,
        temperature=0,
        **more,
    ).choices[0]


def joined(client: openai.OpenAI, said: str, choice: Any = "auto", **more: Any) -> Any:
    """The calls as the official client joins them from a stream, and why the stream ended."""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"say {said}"}],
        tools=TOOLS,
        tool_choice=choice,
        temperature=0,
        stream=True,
        **more,
    )
    calls: dict[int, list[str]] = {}
    reasons: list[str] = []
    for chunk in stream:
        for delta in chunk.choices[0].delta.tool_calls or ():
            own = calls.setdefault(delta.index, ["", "", ""])
            own[0] += delta.id or ""
            own[1] += (delta.function and delta.function.name) or ""
            own[2] += (delta.function and delta.function.arguments) or ""
        if chunk.choices[0].finish_reason:
            reasons.append(chunk.choices[0].finish_reason)
    return [calls[idx] for idx in sorted(calls)], reasons


def test_a_call_of_the_models_own_will_ends_with_tool_calls(client: openai.OpenAI) -> None:
    choice = ask(client, F_CALL)

    (call,) = choice.message.tool_calls
    assert ("f", {"a": 1}) == (call.function.name, json.loads(call.function.arguments))
    assert ("tool_calls", None) == (choice.finish_reason, choice.message.content)


def test_a_model_that_need_not_call_may_speak(client: openai.OpenAI) -> None:
    choice = ask(client, "hello")

    assert ("hello", None, "stop") == (
        choice.message.content,
        choice.message.tool_calls,
        choice.finish_reason,
    )


def test_none_calls_nothing_whatever_the_model_wants(client: openai.OpenAI) -> None:
    choice = ask(client, F_CALL, "none", max_tokens=40)

    assert choice.message.tool_calls is None
    assert choice.finish_reason in ("stop", "length")


@pytest.mark.parametrize("choice", [
    "required", {"type": "function", "function": {"name": "g"}},
])  # fmt: skip
def test_a_call_that_is_forced_ends_with_tool_calls_streamed_or_not(
    client: openai.OpenAI, choice: Any
) -> None:
    whole = ask(client, "hello", choice, parallel_tool_calls=False)
    calls, reasons = joined(client, "hello", choice, parallel_tool_calls=False)

    assert "tool_calls" == whole.finish_reason
    assert ["tool_calls"] == reasons
    ((call_id, name, arguments),) = calls
    called = whole.message.tool_calls[0].function
    assert (called.name, called.arguments) == (name, arguments)
    assert 9 == len(call_id)
    if choice != "required":
        assert "g" == name


def test_calls_side_by_side_have_indices_of_their_own(client: openai.OpenAI) -> None:
    calls, reasons = joined(client, f"{F_CALL}\n{G_CALL}")

    assert [["f", '{"a": 1}'], ["g", '{"b": "y"}']] == [call[1:] for call in calls]
    assert 2 == len({call[0] for call in calls})
    assert ["tool_calls"] == reasons


def test_each_delta_of_a_call_has_its_index_and_the_first_alone_the_name(server: Served) -> None:
    response = httpx2.post(
        f"{server.url}/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": f"say {F_CALL}"}],
            "tools": TOOLS,
            "stream": True,
            "temperature": 0,
        },
        timeout=60,
    )
    chunks = [json.loads(line[6:]) for line in response.text.split("\n\n") if line[6:7] == "{"]
    deltas = [one for chunk in chunks for one in chunk["choices"][0]["delta"].get("tool_calls", ())]

    assert all(0 == one["index"] for one in deltas)
    assert [True, *[False] * (len(deltas) - 1)] == ["id" in one for one in deltas]
    assert [True, *[False] * (len(deltas) - 1)] == ["name" in one["function"] for one in deltas]
    assert '{"a": 1}' == "".join(one["function"]["arguments"] for one in deltas)


def test_a_call_that_is_cut_ends_with_length(client: openai.OpenAI) -> None:
    choice = ask(client, F_CALL, "required", max_tokens=20)
    calls, reasons = joined(client, F_CALL, "required", max_tokens=20)

    assert ("length", None) == (choice.finish_reason, choice.message.tool_calls)
    assert ([], ["length"]) == (calls, reasons)


def test_one_call_is_enough_where_they_must_not_be_parallel(client: openai.OpenAI) -> None:
    choice = ask(client, f"{F_CALL}\n{G_CALL}", parallel_tool_calls=False)

    assert ["f"] == [call.function.name for call in choice.message.tool_calls]


def test_results_go_back_to_the_model(client: openai.OpenAI, server: Served) -> None:
    first = ask(client, f"{F_CALL}\n{G_CALL}").message
    messages: list[Any] = [
        {"role": "user", "content": "say it"},
        first.model_dump(exclude_none=True),
        *({"role": "tool", "tool_call_id": one.id, "content": f"result {one.function.name}"}
          for one in first.tool_calls),
        {"role": "user", "content": "say done"},
    ]  # fmt: skip
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)

    assert "done" == answer.choices[0].message.content
    told = httpx2.post(
        f"{server.url}/tokenize", json={"messages": messages, "tools": TOOLS}, timeout=60
    ).json()["tokens"]
    prompt = httpx2.post(f"{server.url}/detokenize", json={"tokens": told}, timeout=60).json()[
        "prompt"
    ]
    assert F_CALL in prompt
    assert "Result of f: result f\nResult of g: result g" in prompt


def test_tools_and_a_form_are_calls_or_the_form(client: openai.OpenAI) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "x", "strict": True, "schema": {"const": {"k": 1}}},
    }

    assert "tool_calls" == ask(client, F_CALL, response_format=form).finish_reason
    assert {"k": 1} == json.loads(ask(client, '{"k":1}', response_format=form).message.content)


def test_tools_that_cannot_be_offered_together_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            tools=[TOOLS[0], TOOLS[0]],
        )

    assert ("WF421", "tools") == (refused.value.code, refused.value.param)


@pytest.mark.parametrize(
    ("strict", "choice", "status"),
    [(True, "auto", 400), (True, "none", 200), (False, "auto", 200), (None, "auto", 200)],
)
def test_a_strict_tool_that_no_mask_can_hold_is_refused(
    server: Served, strict: bool | None, choice: str, status: int
) -> None:
    held, loose = tool("held", a={"type": "integer"}), tool("loose", a=LOOSE)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "say hi"}],
        "tools": [held, {**loose, "function": {**loose["function"], "strict": strict}}],
        "tool_choice": choice,
    }

    answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)

    assert status == answer.status_code, answer.text
    if status == 400:
        error = answer.json()["error"]
        assert ("WF421", "tools[1].function.parameters") == (error["code"], error["param"])
        assert "'a' of tool 'loose'" in error["message"]
        assert "contains" in error["message"]
