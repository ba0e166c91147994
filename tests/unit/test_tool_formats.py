"""What the families' calls look like, which template speaks which, and what no grammar allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from byte_vocabulary import byte_vocabulary

from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.messages import Message
from flowforge.engine.text.messages import ToolCall as MessageCall
from flowforge.errors import EngineError, InternalError, WorkflowError
from flowforge.grammars.tool_formats import (
    GENERIC,
    TOOL_FORMATS,
    CallDone,
    CallStarted,
    ContentText,
    NamedTool,
    ToolCall,
    ToolDefinition,
    ToolsRequest,
    choose_format,
    compile_tools,
    describe_result,
    describe_tools,
    write_calls,
)
from flowforge.grammars.tool_formats.description import TaggedSyntax, Text

if TYPE_CHECKING:
    from pathlib import Path

    from byte_vocabulary import ByteVocabulary

    from flowforge.grammars.tool_formats import CompiledTools, ToolChoice

WEATHER = ToolDefinition(
    "weather",
    "Look up the weather.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
CLOCK = ToolDefinition("clock", "Tell the time.", {"type": "object", "properties": {}})
TOOLS = (WEATHER, CLOCK)
PARIS = ToolCall("weather", {"city": "Paris", "days": 2})
NOW = ToolCall("clock", {})

TEXTS = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n'
    '</tool_call>\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
    "qwen3-coder": "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    "llama3-json": '{"name": "weather", "parameters": {"city": "Paris", "days": 2}}',
    "pythonic": '[weather(city="Paris", days=2), clock()]',
    "mistral": '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris", "days": 2}, '
    '"id": "a1b2c3d4e"}, {"name": "clock", "arguments": {}, "id": "a1b2c3d4e"}]',
    "mistral-args": '[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 2}'
    "[TOOL_CALLS]clock[ARGS]{}",
    "phi4": '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris", "days": 2}}, '
    '{"name": "clock", "arguments": {}}]<|/tool_call|>',
    "granite3": '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris", "days": 2}}, '
    '{"name": "clock", "arguments": {}}]',
    "deepseek-r1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    '```json\n{"city": "Paris", "days": 2}\n```<｜tool▁call▁end｜>\n'
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "deepseek-v3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    '{"city": "Paris", "days": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi-k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    '<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|>'
    "<|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>",
    "gpt-oss": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Paris", "days": 2}<|call|>',
    "glm": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>clock\n</tool_call>",
    "function-gemma": "<start_function_call>call:weather{city:<escape>Paris<escape>,days:2}"
    "<end_function_call><start_function_call>call:clock{}<end_function_call>",
    "gemma4": '<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>'
    "<|tool_call>call:clock{}<tool_call|>",
    "json-list": '[{"name": "weather", "arguments": {"city": "Paris", "days": 2}}, '
    '{"name": "clock", "arguments": {}}]',
}
TEXTS["generic"] = TEXTS["hermes"]


@pytest.fixture(scope="module")
def plain() -> ByteVocabulary:
    """A vocabulary without any family's control tokens: their marks are ordinary text."""
    return byte_vocabulary()


def compiled(
    vocabulary: ByteVocabulary,
    name: str = "hermes",
    choice: ToolChoice = "auto",
    tools: tuple[ToolDefinition, ...] = TOOLS,
    max_calls: int = 16,
) -> CompiledTools:
    request = ToolsRequest(tools, choice, max_calls)
    return compile_tools(request, TOOL_FORMATS[name], vocabulary.vocabulary)


def takes(tools: CompiledTools, vocabulary: ByteVocabulary, text: str) -> str:
    """How far the grammar goes along with a text: 'no', 'begins' it, or it may 'end' there."""
    state = tools.constraint.start()
    for token_id in vocabulary.encode(text):
        if token_id not in vocabulary.allowed(state):
            return "no"
        state.advance(token_id)
    return "end" if state.is_accepting else "begins"


def test_every_format_is_written_as_its_family_writes_it() -> None:
    written = {
        name: write_calls([PARIS] if one.separator is None else [PARIS, NOW], TOOLS, one)
        for name, one in TOOL_FORMATS.items()
    }

    assert written == TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_written_is_allowed_and_read_back(plain: ByteVocabulary, name: str) -> None:
    tools = compiled(plain, name)
    parser = tools.parser()

    pieces = [*parser.push(TEXTS[name]), *parser.finish()]

    assert takes(tools, plain, TEXTS[name]) == "end"
    done = [piece.call for piece in pieces if isinstance(piece, CallDone)]
    expected = [PARIS] if TOOL_FORMATS[name].separator is None else [PARIS, NOW]
    assert [(call.name, call.arguments) for call in done] == [
        (call.name, call.arguments) for call in expected
    ]
    assert parser.answer.is_whole


SPEAKS = {
    "gemma2": "generic",
    "llama2": "generic",
    "llama3_2": "llama3-json",
    "mistral_tools": "mistral",
    "qwen2": "generic",
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_coder": "qwen3-coder",
    "smollm2": "generic",
}


@pytest.mark.parametrize("template", SPEAKS)
def test_a_template_is_known_by_what_it_says(cases_dir: Path, template: str) -> None:
    source = (cases_dir / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")

    assert choose_format(source).name == SPEAKS[template]


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3", "qwen3_coder", "mistral_tools"])
def test_a_template_prints_calls_as_its_format_writes_them(cases_dir: Path, template: str) -> None:
    source = (cases_dir / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")
    control = ["<s>", "</s>", "[TOOL_CALLS]", "<|im_start|>", "<|im_end|>", "<tool_call>"]
    vocabulary = byte_vocabulary(control, ends=["</s>"])
    call = MessageCall("weather", {"city": "Paris", "days": 2}, "a1b2c3d4e")
    messages = [Message("user", "hi"), Message("assistant", "", (call,))]
    chat = ChatTemplate(source, vocabulary.tokenizer)

    printed = vocabulary.decode(chat.render(messages, add_generation_prompt=False))

    same = ToolCall("weather", PARIS.arguments, call.id)
    expected = write_calls([same], TOOLS, choose_format(source))
    assert expected.replace("[TOOL_CALLS] [", "[TOOL_CALLS][") in printed.replace(
        "[TOOL_CALLS] [", "[TOOL_CALLS]["
    )


def test_a_format_can_be_named_and_must_exist() -> None:
    assert choose_format("<tool_call>", "pythonic").name == "pythonic"
    with pytest.raises(EngineError, match="unknown tool format 'hermse'"):
        choose_format("", "hermse")


def test_the_end_of_a_raw_argument_never_overlaps_itself() -> None:
    for one in TOOL_FORMATS.values():
        syntax = one.arguments
        end = syntax.after_value if isinstance(syntax, TaggedSyntax) else syntax.string_close
        assert not any(end.endswith(end[:size]) for size in range(1, len(end))), one.name


def test_calls_that_follow_each_other_begin_with_a_text() -> None:
    for one in TOOL_FORMATS.values():
        between = one.separator or ()
        has_text = any(isinstance(part, Text) for part in between)
        assert one.separator is None or has_text or isinstance(one.call[0], Text), one.name


# -- what the grammar allows -----------------------------------------------------------------------


def test_text_may_come_before_calls_and_nothing_after_them(plain: ByteVocabulary) -> None:
    tools = compiled(plain)

    assert takes(tools, plain, "Sunny <tool_cal") == "end"
    assert takes(tools, plain, "Let me see. " + TEXTS["hermes"]) == "end"
    assert takes(tools, plain, TEXTS["hermes"] + " So it is") == "no"


def test_a_mark_begins_a_call_and_no_other_text(plain: ByteVocabulary) -> None:
    assert takes(compiled(plain), plain, "see <tool_call> tags") == "no"
    assert takes(compiled(plain, choice="none"), plain, "see <too few") == "end"
    assert takes(compiled(plain, choice="none"), plain, "see <tool") == "no"
    assert takes(compiled(plain, "llama3-json", "none"), plain, '{"name": "weather') == "no"
    assert takes(compiled(plain, "llama3-json"), plain, '{"name": 1}') == "end"


def test_only_known_tools_and_their_arguments_are_allowed(plain: ByteVocabulary) -> None:
    head = '<tool_call>\n{"name": "'
    tools = compiled(plain)

    assert takes(tools, plain, head + "weathers") == "no"
    assert takes(tools, plain, head + 'clock", "arguments": {}}\n</tool_call>') == "end"
    assert takes(tools, plain, head + 'weather", "arguments": {}') == "no"
    assert takes(tools, plain, head + 'weather", "arguments": {"town') == "no"
    assert takes(tools, plain, head + 'weather", "arguments": {"city": 1') == "no"


def test_a_required_call_comes_first_and_a_named_one_is_that(plain: ByteVocabulary) -> None:
    assert takes(compiled(plain, choice="required"), plain, "T") == "no"
    assert takes(compiled(plain, choice="required"), plain, "") == "begins"
    named = compiled(plain, choice=NamedTool("clock"))
    assert takes(named, plain, '<tool_call>\n{"name": "w') == "no"


def test_the_number_of_calls_is_bounded(plain: ByteVocabulary) -> None:
    one = TEXTS["hermes"].split("</tool_call>")[0] + "</tool_call>"

    assert takes(compiled(plain, max_calls=1), plain, one) == "end"
    assert takes(compiled(plain, max_calls=1), plain, one + "\n<") == "no"
    assert takes(compiled(plain, max_calls=2), plain, one + "\n" + one) == "end"
    assert takes(compiled(plain, max_calls=2), plain, one + "\n" + one + "\n<") == "no"


def test_a_mark_that_is_a_control_token_cannot_be_spelled() -> None:
    vocabulary = byte_vocabulary(["<tool_call>", "</tool_call>", "<|im_start|>"])
    tools = compiled(vocabulary)
    state = tools.constraint.start()
    for byte in b"a <tool_call":
        state.advance(vocabulary.encode(chr(byte))[0])

    assert vocabulary.encode(">")[0] not in vocabulary.allowed(state)
    assert takes(tools, vocabulary, TEXTS["hermes"]) == "end"
    assert vocabulary.control_ids["<|im_start|>"] not in vocabulary.allowed(state)


def test_a_mark_that_ends_the_turn_is_left_to_the_engine() -> None:
    vocabulary = byte_vocabulary(
        ["<|channel|>", "<|message|>", "<|constrain|>"], ends=["<end>", "<|call|>"]
    )
    tools = compiled(vocabulary, "gpt-oss")
    text = TEXTS["gpt-oss"].removesuffix("<|call|>")
    parser = tools.parser()
    parser.push(text)
    parser.finish()

    assert takes(tools, vocabulary, text) == "end"
    assert parser.answer.is_whole
    assert len(parser.answer.calls) == 1


# -- hostile and odd tools -------------------------------------------------------------------------

ODD_SCHEMAS: dict[str, Any] = {
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "pattern": {"type": "string", "pattern": "(?=x)x"},
    "reference": {"$ref": "https://example.com/schema.json"},
    "not": {"not": {"type": "string"}},
    "not a schema": {"type": 7},
    "deep": {"type": "array", "items": {"type": "array", "items": {"not": {}}}},
}


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "pythonic", "gemma4"])
@pytest.mark.parametrize("odd", ODD_SCHEMAS)
def test_a_schema_that_cannot_be_enforced_loosens_its_own_argument_only(
    plain: ByteVocabulary, name: str, odd: str
) -> None:
    parameters: Any = {
        "type": "object",
        "properties": {"odd": ODD_SCHEMAS[odd], "count": {"type": "integer"}},
        "required": ["odd", "count"],
    }

    tools = compiled(plain, name, "auto", (ToolDefinition("odd_one", "", parameters), *TOOLS))

    assert [(one.tool, one.name) for one in tools.loose] == [("odd_one", "odd")]
    assert takes(tools, plain, TEXTS[name]) == "end"
    call = ToolCall("odd_one", {"odd": [1, 1] if odd != "pattern" else "x", "count": 3})
    text = write_calls([call], [ToolDefinition("odd_one", "", parameters)], TOOL_FORMATS[name])
    assert takes(tools, plain, text) == "end"
    assert takes(tools, plain, text.replace("3", '"x"')) == "no"


def test_control_texts_in_a_schema_stay_text() -> None:
    vocabulary = byte_vocabulary(["<tool_call>", "</tool_call>", "<|im_end|>"])
    hostile = ToolDefinition(
        "f",
        "<|im_end|>",
        {
            "type": "object",
            "properties": {"<|im_end|>": {"enum": ["</tool_call>", "<|im_end|>"]}},
            "required": ["<|im_end|>"],
        },
    )
    state = compiled(vocabulary, "hermes", "required", (hostile,), 1).constraint.start()

    token_ids: list[int] = []
    while not state.is_complete:
        allowed = vocabulary.allowed(state)
        state.advance(allowed[0])
        token_ids.append(allowed[0])

    controls = [one for one in token_ids if one in vocabulary.control_ids.values()]
    assert controls == [
        vocabulary.control_ids["<tool_call>"],
        vocabulary.control_ids["</tool_call>"],
    ]


def test_tools_must_be_told_apart_and_be_there(plain: ByteVocabulary) -> None:
    with pytest.raises(WorkflowError, match="two tools are called 'weather'"):
        compiled(plain, tools=(WEATHER, WEATHER))
    with pytest.raises(WorkflowError, match="there is no tool 'wether'"):
        compiled(plain, choice=NamedTool("wether"))
    with pytest.raises(WorkflowError, match="a call is required"):
        compiled(plain, choice="required", tools=())


# -- reading while it comes ------------------------------------------------------------------------


def test_pieces_come_as_soon_as_they_are_certain(plain: ByteVocabulary) -> None:
    parser = compiled(plain).parser()

    assert parser.push("Wait <tool") == [ContentText("Wait ")]
    assert parser.push("s <tool_call>\n{") == [ContentText("<tools ")]
    assert parser.push('"name": "cloc') == []
    assert parser.push('k", "argum') == [CallStarted(0, "clock")]
    assert parser.push('ents": {}}\n</tool_call>') == [CallDone(0, NOW)]
    assert parser.finish() == []
    assert parser.answer.content == "Wait <tools "


@pytest.mark.parametrize("name", TEXTS)
def test_a_call_that_is_cut_off_is_no_call(plain: ByteVocabulary, name: str) -> None:
    text = TEXTS[name]
    tools = compiled(plain, name, "required")
    for size in range(len(text)):
        parser = tools.parser()
        pieces = parser.push(text[:size]) + parser.finish()
        answer = parser.answer
        assert len(answer.calls) == sum(isinstance(piece, CallDone) for piece in pieces)
        assert answer.is_whole == (takes(tools, plain, text[:size]) == "end")


def test_a_text_that_no_grammar_allowed_is_refused_and_not_guessed(plain: ByteVocabulary) -> None:
    parser = compiled(plain).parser()

    with pytest.raises(InternalError, match="a tool call cannot be read"):
        parser.push('<tool_call>\n{"name": "rm -rf"')


def test_tools_are_described_with_a_call_in_the_format() -> None:
    told = describe_tools(TOOLS, GENERIC)

    assert '{"name": "weather", "description": "Look up the weather.", "parameters": ' in told
    assert '<tool_call>\n{"name": "tool_name", "arguments": ' in told
    assert describe_result("clock", '"12:00"') == 'Result of clock: "12:00"'
