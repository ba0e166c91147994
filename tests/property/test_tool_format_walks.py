"""Whatever a format's grammar lets a random walk write, its parser reads, and the judge accepts."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from byte_vocabulary import byte_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from flowforge.grammars.schema_dialect import make_validator
from flowforge.grammars.tool_formats import (
    TOOL_FORMATS,
    ToolDefinition,
    ToolFormat,
    compile_tools,
)
from flowforge.grammars.tool_formats.description import LiteralSyntax, TaggedSyntax, Text
from flowforge.grammars.tool_formats.requests import NamedTool, ToolsRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from byte_vocabulary import ByteVocabulary

    from flowforge.grammars.tool_formats.compilation import CompiledTools
    from flowforge.grammars.tool_formats.requests import Reasoning, ToolChoice

_CONTROL = re.compile(r"<[^<>\s=]*>|\[/?[A-Z_]+\]")
_MOST_TOKENS = 3_000

STRINGS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "string", "maxLength": 5},
    {"type": "string", "pattern": "^[a-z]{1,4}$"},
    {"type": "string", "pattern": "b+"},
    {"type": "string", "format": "date"},
    {"enum": ["red", "a\nb", 'say "x"']},
    {"const": "one"},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"$ref": "#/$defs/Colour"},
]
SCALARS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": -5, "maximum": 120},
    {"type": "number"},
    {"type": "boolean"},
    {"type": ["integer", "null"]},
    {"enum": [1, "x", None, True]},
]
DEFINITIONS: dict[str, Any] = {
    "Colour": {"enum": ["red", "blue"]},
    "Tree": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "child": {"$ref": "#/$defs/Tree"}},
        "required": ["name"],
        "additionalProperties": False,
    },
}


Schema = dict[str, Any]


def array_of(items: Schema, most: int) -> Schema:
    return {"type": "array", "items": items, "maxItems": most}


def object_of(a: Schema, b: Schema, required: list[str]) -> Schema:
    properties = {"a": a, "b": b}
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def union_of(a: Schema, b: Schema) -> Schema:
    return {"anyOf": [a, b]}


def nested(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    arrays = st.builds(array_of, inner, st.integers(0, 3))
    required = st.sampled_from([[], ["a"], ["b"], ["a", "b"]])
    objects = st.builds(object_of, inner, inner, required)
    unions = st.builds(union_of, arrays, st.sampled_from(SCALARS))
    return arrays | objects | unions


schemas = st.recursive(
    st.sampled_from([*STRINGS, *SCALARS, {"$ref": "#/$defs/Tree"}]), nested, max_leaves=4
)


@st.composite
def definitions(draw: st.DrawFn) -> tuple[ToolDefinition, ...]:
    """One to three tools, one name beginning another, with some arguments required."""
    tools: list[ToolDefinition] = []
    for name in draw(st.sampled_from([["get"], ["get", "get_all"], ["a-b", "get_all", "get"]])):
        properties = draw(st.dictionaries(st.sampled_from("pqrs"), schemas, max_size=3))
        required = [one for one in properties if draw(st.booleans())]
        parameters: Schema = {
            "type": "object",
            "properties": properties,
            "required": required,
            "$defs": DEFINITIONS,
        }
        tools.append(ToolDefinition(name, "", parameters))
    return tuple(tools)


@pytest.mark.parametrize("has_control", [True, False], ids=["control tokens", "plain text"])
@pytest.mark.parametrize("name", TOOL_FORMATS)
@settings(max_examples=12)
@given(
    tools=definitions(),
    word=st.sampled_from(["auto", "required", "named", "none"]),
    reasoning=st.sampled_from(["none", "possible", "opened"]),
    max_calls=st.integers(1, 3),
    seed=st.integers(min_value=0),
)
def test_what_a_walk_writes_is_read_and_stands_its_schema(
    name: str,
    has_control: bool,
    tools: tuple[ToolDefinition, ...],
    word: str,
    reasoning: Reasoning,
    max_calls: int,
    seed: int,
) -> None:
    choice: Any = NamedTool("get_all" if len(tools) > 1 else "get") if word == "named" else word
    format = TOOL_FORMATS[name]
    vocabulary = vocabulary_of(name, has_control=has_control)
    request = ToolsRequest(tools, choice, max_calls, reasoning)
    compiled = compile_tools(request, format, vocabulary.vocabulary)

    text = walk(compiled, vocabulary, random.Random(seed))

    assert compiled.loose == ()
    parser = compiled.parser()
    pick = random.Random(seed)
    for piece in cut(text, pick):
        parser.push(piece)
    parser.finish()
    answer = parser.answer
    assert answer.is_whole, text
    check_count(choice, len(answer.calls), max_calls)
    if not answer.calls and format.content is None and reasoning == "none":
        assert answer.content == text
    known = {tool.name: tool for tool in request.callable_tools}
    for call in answer.calls:
        schema = {**known[call.name].parameters, "additionalProperties": False}
        problems = list(make_validator(schema).iter_errors(dict(call.arguments)))
        assert not problems, (text, problems)


def check_count(choice: ToolChoice, num_calls: int, max_calls: int) -> None:
    least = 0 if choice in ("auto", "none") else 1
    most = 0 if choice == "none" else max_calls
    assert least <= num_calls <= most


@cache
def vocabulary_of(name: str, *, has_control: bool) -> ByteVocabulary:
    control = [*dict.fromkeys(marks_of(TOOL_FORMATS[name]))] if has_control else []
    return byte_vocabulary(control)


def marks_of(format: ToolFormat) -> Iterator[str]:
    """What looks like a control token in a format's texts."""
    texts = [
        part.text for part in (*format.begin, *format.call, *format.end) if isinstance(part, Text)
    ]
    spans = [span for span in (format.content, format.reasoning) if span is not None]
    texts += [text for span in spans for text in (span.opening, span.closing)]
    if isinstance(format.arguments, LiteralSyntax):
        texts.append(format.arguments.string_open)
    else:
        texts += [format.arguments.before_name, format.arguments.after_value]
    for text in texts:
        yield from _CONTROL.findall(text)


def walk(compiled: CompiledTools, vocabulary: ByteVocabulary, pick: random.Random) -> str:
    """A text that the grammar allows. It often writes what ends something, so that it ends."""
    state = compiled.constraint.start()
    endings = [vocabulary.encode(text) for text in endings_of(compiled.format)]
    token_ids: list[int] = []
    planned: list[int] = []
    while not state.is_complete and not (state.is_accepting and pick.random() < 0.1):
        assert len(token_ids) < _MOST_TOKENS, vocabulary.decode(token_ids)[-200:]
        if not planned and pick.random() < (0.2 if len(token_ids) < 400 else 0.9):
            planned = list(pick.choice(endings))
        allowed = vocabulary.allowed(state)
        planned = planned if planned[:1] and planned[0] in allowed else []
        token_id = planned.pop(0) if planned else pick.choice(allowed)
        state.advance(token_id)
        token_ids.append(token_id)
    # What is left of a character that the walk stopped in is no text.
    return vocabulary.decode(token_ids)


def endings_of(format: ToolFormat) -> list[str]:
    syntax = format.arguments
    endings = ['"', "}", "]", "]}", "7", "b", "é"]
    if isinstance(syntax, TaggedSyntax):
        endings += [syntax.after_value, *(p.text for p in syntax.after if isinstance(p, Text))]
    else:
        endings += [syntax.string_close, syntax.closing]
    spans = [span for span in (format.content, format.reasoning) if span is not None]
    endings += [span.closing for span in spans if span.closing]
    endings += [part.text for part in format.call if isinstance(part, Text)]
    return [*endings, format.trigger or "["]


def cut(text: str, pick: random.Random) -> Iterator[str]:
    while text:
        size = pick.randint(1, 9)
        yield text[:size]
        text = text[size:]
