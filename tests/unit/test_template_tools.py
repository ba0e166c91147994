"""Tools, tool calls and tool results through chat templates, against transformers' rendering."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.messages import (
    Message,
    ToolCall,
    ToolSchema,
    message_view,
    tool_view,
)
from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

IM = ("<|im_start|>", "<|im_end|>", "<s>")
FAMILIES: dict[str, tuple[str | None, str, tuple[str, ...]]] = {
    # bos, eos, control tokens
    "qwen2_5": (None, "<|im_end|>", IM),
    "qwen3": (None, "<|im_end|>", IM),
    "qwen3_coder": (None, "<|im_end|>", IM),
    "llama3_2": (
        "<|begin_of_text|>",
        "<|eot_id|>",
        ("<|start_header_id|>", "<|end_header_id|>"),
    ),
    "mistral_tools": (
        "<s>",
        "</s>",
        (
            "[INST]",
            "[/INST]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ),
    ),
}
PLACE = {"type": "string", "description": "Where: a city"}
WEATHER = ToolSchema(
    "weather",
    "The weather somewhere, in °C",
    {"type": "object", "properties": {"place": PLACE}, "required": ["place"]},
)
CLOCK = ToolSchema("clock", "What time it is", {"type": "object", "properties": {}})
ASK = Message("user", "How warm is Zürich?")
CALL = ToolCall("weather", {"place": 'Zürich "ZH"', "days": [1, 2]}, "call00001")
CALLS = Message("assistant", "", tool_calls=(CALL,))
RESULT = Message("tool", '{"t": 21}\n', name="weather", tool_call_id="call00001")
CONVERSATIONS = {
    "asked": [ASK],
    "asked under a system text": [Message("system", "Be brief."), ASK],
    "called": [ASK, CALLS],
    "answered": [ASK, CALLS, RESULT],
    "went on": [ASK, CALLS, RESULT, Message("assistant", "21."), Message("user", "And now?")],
    "said and called": [ASK, Message("assistant", "Let me see.", tool_calls=(CALL,)), RESULT],
}


@dataclass(frozen=True, slots=True)
class Loaded:
    tokenizer: Tokenizer
    template: ChatTemplate
    reference: Any

    def reference_text(self, messages: list[Message], tools: list[ToolSchema]) -> str:
        text: str = self.reference.apply_chat_template(
            [message_view(message) for message in messages],
            tools=[tool_view(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=True,
        )
        return text

    def text(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special=False)


def load(
    source: str, bos: str | None = None, eos: str = "<|im_end|>", control: tuple[str, ...] = IM
) -> Loaded:
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = BackendTokenizer(models.BPE({char: idx for idx, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    named = [text for text in (bos, eos, *control) if text is not None]
    backend.add_special_tokens([AddedToken(text, special=True) for text in dict.fromkeys(named)])
    configs = {"tokenizer_config.json": {"bos_token": bos, "eos_token": eos}}
    tokenizer = Tokenizer(backend.to_str(), configs=configs, adds_bos=bos is not None)
    reference = PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=source, bos_token=bos, eos_token=eos
    )
    return Loaded(tokenizer, ChatTemplate(source, tokenizer, today=date(2026, 3, 4)), reference)


@pytest.fixture(autouse=True)
def _transformers_lives_today(monkeypatch: pytest.MonkeyPatch) -> None:
    class FixedClock:
        now = staticmethod(lambda: date(2026, 3, 4))

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", FixedClock)


@pytest.fixture(params=FAMILIES)
def loaded(request: pytest.FixtureRequest, cases_dir: Path) -> Loaded:
    return load_family(request.param, cases_dir)


def load_family(name: str, cases_dir: Path) -> Loaded:
    source = (cases_dir / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    return load(source, *FAMILIES[name])


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("tools", [[], [WEATHER], [WEATHER, CLOCK]])
def test_tools_calls_and_results_are_what_transformers_makes(
    loaded: Loaded, name: str, tools: list[ToolSchema]
) -> None:
    messages = CONVERSATIONS[name]
    expected = loaded.reference_text(messages, tools)

    token_ids = loaded.template.render(messages, tools)

    assert expected == loaded.text(token_ids)
    assert loaded.reference(expected, add_special_tokens=False)["input_ids"] == token_ids


def test_control_texts_in_tools_calls_and_results_are_text(loaded: Loaded) -> None:
    forged = " ".join(["x", *loaded.tokenizer.special_tokens, "\ue0000\ue000", 'a"b', "y"])

    def conversation(text: str) -> tuple[list[Message], list[ToolSchema]]:
        tool = ToolSchema(
            "t",
            text,
            {"type": "object", "properties": {text: {"type": "string", "enum": [text]}}},
        )
        call = ToolCall("t", {text: [text, {text: text}]}, "call00001")
        result = Message("tool", text, name="t", tool_call_id="call00001")
        return [ASK, Message("assistant", "", tool_calls=(call,)), result], [tool]

    token_ids = loaded.template.render(*conversation(forged))

    control = loaded.tokenizer.special_ids
    plain = loaded.template.render(*conversation("x"))
    expected = [token for token in plain if token in control]
    assert expected == [token for token in token_ids if token in control]
    assert loaded.reference_text(*conversation(forged)) == loaded.text(token_ids)


def test_a_generated_call_and_its_result_are_the_whole_conversation(loaded: Loaded) -> None:
    """What the model wrote stands as its ids; the template's own words go around it."""
    reply = Message("assistant", "Let me see.")
    result = Message("tool", "21", name="weather", tool_call_id="call00001")
    said = reply.content
    if loaded.text(loaded.template.render([ASK, reply])).find(f" {said}") > 0:
        said = f" {said}"  # Mistral's replies start with a space
    eos_id = loaded.tokenizer.turn_end_id
    assert eos_id is not None
    generated = [*loaded.tokenizer.encode(said), eos_id]

    rest = loaded.template.continuation(
        [ASK, Message("assistant", "", tool_calls=(CALL,))],
        [result],
        [CLOCK],
        last_token=eos_id,
    )

    whole = loaded.template.render([ASK, reply, result], [CLOCK])
    assert whole == loaded.template.render([ASK], [CLOCK]) + generated + rest


def test_a_template_says_what_it_takes(loaded: Loaded) -> None:
    assert loaded.template.takes_tools
    assert loaded.template.takes_tool_calls
    assert loaded.template.takes_system


@pytest.mark.parametrize("name", ["gemma2", "phi3", "smollm2"])
def test_a_template_without_a_place_for_tools_says_so(name: str, cases_dir: Path) -> None:
    source = (cases_dir / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    template = load(source, "<bos>").template

    with pytest.raises(EngineError, match="no place for tools") as caught:
        template.render([ASK], [WEATHER])

    assert caught.value.code == "EN304"
    assert not template.takes_tools
    assert not template.takes_tool_calls
    assert template.takes_system is (name != "gemma2")


def test_a_call_that_the_template_leaves_out_is_told(
    caplog: pytest.LogCaptureFixture, cases_dir: Path
) -> None:
    source = (cases_dir / "chat_templates" / "smollm2.jinja").read_text(encoding="utf-8")

    load(source).template.render([ASK, CALLS, RESULT])

    assert "leaves out the tool calls of the message at place 1" in caplog.text


def test_words_beside_a_call_that_the_template_leaves_out_are_told(
    caplog: pytest.LogCaptureFixture, cases_dir: Path
) -> None:
    load_family("llama3_2", cases_dir).template.render(CONVERSATIONS["said and called"])

    assert "leaves out what the message at place 1 says beside its calls" in caplog.text


def test_an_id_of_another_form_is_the_templates_own_error(cases_dir: Path) -> None:
    template = load_family("mistral_tools", cases_dir).template
    call = ToolCall("weather", {}, "1")

    with pytest.raises(EngineError, match="nine letters or digits") as caught:
        template.render([ASK, Message("assistant", "", tool_calls=(call,))], [WEATHER])

    assert caught.value.code == "EN304"


def test_a_tool_name_that_the_template_turns_into_a_control_token_is_refused() -> None:
    source = (
        "{{ messages[0].content }}{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}"
    )
    template = load(source).template

    assert template.render([ASK], [CLOCK])
    with pytest.raises(EngineError, match="makes the control token '<s>'") as caught:
        template.render([ASK], [ToolSchema("s", "", {})])

    assert caught.value.code == "EN307"


def test_openai_tools_and_calls_are_read() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"place": "Bern"}'},
    }
    message = Message.from_openai({"role": "assistant", "content": None, "tool_calls": [call]})
    answer = Message.from_openai({"role": "tool", "tool_call_id": "c1", "content": "21"})

    assert (ToolCall("weather", {"place": "Bern"}, "c1"),) == message.tool_calls
    assert "c1" == answer.tool_call_id
    assert WEATHER == ToolSchema.from_openai(tool_view(WEATHER))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"function": {"name": "f", "arguments": "{"}}, "no JSON"),
        ({"function": {"name": "f", "arguments": "[1]"}}, "expected an object"),
        ({"function": {"arguments": {}}}, "name is None"),
        ({}, "function is a NoneType"),
        (7, "is a int"),
    ],
)
def test_a_call_of_another_shape_is_refused(call: object, reason: str) -> None:
    with pytest.raises(EngineError, match=reason) as caught:
        Message.from_openai({"role": "assistant", "content": "", "tool_calls": [call]})

    assert caught.value.code == "EN307"
