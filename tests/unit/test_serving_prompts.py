"""Whole conversations of clients as prompts, through templates that know tools and others."""

from __future__ import annotations

from datetime import date
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from byte_vocabulary import byte_vocabulary

from flowforge.backends.tool_speech import ToolSpeech
from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.serving.failures import RequestError
from flowforge.serving.prompts import offer_of, prompt_of
from flowforge.serving.requests import ChatRequest

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.backends.engine import EngineBackend

IM = ("<|im_start|>", "<|im_end|>")
FAMILIES = {
    "qwen2_5": (IM, "<|im_end|>"),
    "mistral_tools": (
        ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",
         "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        "</s>",
    ),
    "smollm2": (IM, "<|im_end|>"),
}  # fmt: skip


def call(call_id: str, name: str = "weather") -> dict[str, Any]:
    function = {"name": name, "arguments": '{"place": "Lima"}'}
    return {"id": call_id, "type": "function", "function": function}


def result(call_id: str, text: str = "warm") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


ASK = {"role": "user", "content": "How warm?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [call("call_abc")]}
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("weather", "clock")
]


def prompt(cases_dir: Path, family: str, messages: list[dict[str, Any]], **more: Any) -> str:
    """The text of a prompt, control tokens shown."""
    control, end = FAMILIES[family]
    tokenizer = byte_vocabulary(control, [end]).tokenizer
    source = (cases_dir / "chat_templates" / f"{family}.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, tokenizer, today=date(2026, 1, 2))
    parts = SimpleNamespace(template=template, speech=ToolSpeech(template))
    request = ChatRequest.model_validate({"model": "m", "messages": messages, **more})
    ids = prompt_of(
        cast("EngineBackend", parts),
        request.messages,
        offer_of(request),
        continues_last=bool(request.continue_final_message),
    )
    return tokenizer.decode(ids, skip_special=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_and_results_come_in_the_models_own_way(cases_dir: Path, family: str) -> None:
    text = prompt(cases_dir, family, [ASK, CALLED, result("call_abc")], tools=TOOLS)

    assert "weather" in text and "clock" in text
    assert text.index("How warm?") < text.rindex("Lima") < text.rindex("warm")
    # A random id would make the same conversation another prompt, and some templates refuse it.
    assert "call_abc" not in text
    if family == "mistral_tools":
        assert "call00000" in text


def test_results_are_told_by_their_calls_whatever_their_order(cases_dir: Path) -> None:
    both = {
        "role": "assistant",
        "content": "",
        "tool_calls": [call("x"), call("y", "clock")],
    }
    text = prompt(cases_dir, "smollm2", [ASK, both, result("y", "noon"), result("x")], tools=TOOLS)

    assert "Result of clock: noon\nResult of weather: warm" in text


@pytest.mark.parametrize(("messages", "words"), [
    ([ASK, CALLED], "call_abc"),
    ([ASK, CALLED, ASK], "call_abc"),
    ([ASK, result("call_abc")], "call_abc"),
    ([ASK, CALLED, result("other")], "other"),
    ([ASK, CALLED, result("call_abc"), result("call_abc")], "call_abc"),
    ([ASK, {"role": "assistant", "tool_calls": [call("a"), call("a")]}], "same id"),
    ([ASK, {"role": "assistant", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]}], "no JSON"),
    ([ASK, {"role": "assistant", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[]"}}]}],
     "no JSON object"),
    ([ASK, {"role": "assistant"}], "content is missing"),
])  # fmt: skip
def test_messages_that_do_not_follow_from_each_other_are_refused(
    cases_dir: Path, messages: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(RequestError) as refused:
        prompt(cases_dir, "smollm2", messages, tools=TOOLS)

    assert 400 == refused.value.failure.status
    assert words in refused.value.failure.message


def test_only_what_the_assistant_said_can_be_gone_on_with(cases_dir: Path) -> None:
    said = [ASK, {"role": "assistant", "content": "It is "}]

    assert prompt(cases_dir, "qwen2_5", said, continue_final_message=True).endswith(
        "<|im_start|>assistant\nIt is "
    )
    with pytest.raises(RequestError):
        prompt(cases_dir, "qwen2_5", [ASK], continue_final_message=True)
