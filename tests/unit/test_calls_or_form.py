"""Answers that are calls or a text of a form: what the mask holds, and how they are read."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from byte_vocabulary import byte_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from flowforge.backends.answer_reader import AnswerReader
from flowforge.grammars import compile_json_schema, compile_regex, matches_regex, validate_json
from flowforge.grammars.calls_or_form import CallsOrForm
from flowforge.grammars.closing_state import ClosingState
from flowforge.grammars.tool_formats import (
    TOOL_FORMATS,
    ToolCall,
    ToolDefinition,
    ToolsRequest,
    compile_tools,
    write_calls,
)

if TYPE_CHECKING:
    from byte_vocabulary import ByteVocabulary

    from flowforge.grammars import CompiledConstraint
    from flowforge.grammars.tool_formats import CompiledTools

TOOL = ToolDefinition(
    "say",
    "",
    {"type": "object", "properties": {"word": {"type": "string", "maxLength": 9}}},
)
CALL = ToolCall("say", {"word": "né"})
REGEX = "<[a-z_<>]{0,12}|[a-c]{1,3}"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


@cache
def plain() -> ByteVocabulary:
    return byte_vocabulary()


@cache
def tools_of(name: str) -> CompiledTools:
    request = ToolsRequest((TOOL,), "required", 2)
    return compile_tools(request, TOOL_FORMATS[name], plain().vocabulary)


@cache
def schema_form() -> CompiledConstraint:
    return compile_json_schema(SCHEMA, plain().vocabulary)


@cache
def regex_form() -> CompiledConstraint:
    return compile_regex(REGEX, plain().vocabulary)


def read(
    vocabulary: ByteVocabulary, tools: CompiledTools, token_ids: list[int], pick: random.Random
) -> AnswerReader:
    reader = AnswerReader(vocabulary.tokenizer, tools=tools, may_be_text=True)
    while token_ids:
        size = pick.randint(1, 9)
        reader.push(token_ids[:size])
        token_ids = token_ids[size:]
    reader.finish()
    return reader


@pytest.mark.parametrize("name", TOOL_FORMATS)
@settings(max_examples=10)
@given(seed=st.integers(min_value=0), is_json=st.booleans())
def test_what_may_be_written_is_whole_calls_or_a_whole_text(
    name: str, seed: int, *, is_json: bool
) -> None:
    vocabulary, pick = plain(), random.Random(seed)
    tools = tools_of(name)
    form = schema_form() if is_json else regex_form()
    state = CallsOrForm(tools.constraint.start(), form.start())
    token_ids: list[int] = []
    while not state.is_complete and not (state.is_accepting and pick.random() < 0.3):
        forced = state.forced_tokens()
        allowed = vocabulary.allowed(state)
        assert set(forced[:1]) <= set(allowed)
        token_id = forced[0] if forced else pick.choice(allowed)
        assert state.advance(token_id)
        token_ids.append(token_id)

    reader = read(vocabulary, tools, token_ids, pick)

    text = vocabulary.decode(token_ids)
    assert not reader.cuts_call
    if reader.calls:
        assert reader.text == ""
        assert [call.name for call in reader.calls] == ["say"] * len(reader.calls)
    elif is_json:
        validate_json(reader.text, SCHEMA)
    else:
        assert reader.text == text
        assert matches_regex(REGEX, reader.text)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_calls_and_texts_are_both_allowed_and_told_apart(name: str) -> None:
    vocabulary = plain()
    tools = tools_of(name)
    form = schema_form()
    call, answer = write_calls([CALL, CALL], [TOOL], tools.format), '{"name":"Bo","ok":true}'
    if tools.format.separator is None:
        call = write_calls([CALL], [TOOL], tools.format)

    for text in (call, answer):
        state = CallsOrForm(tools.constraint.start(), form.start())
        token_ids = vocabulary.encode(text)
        for token_id in token_ids:
            assert token_id in vocabulary.allowed(state)
            state.advance(token_id)
        assert state.is_accepting
        reader = read(vocabulary, tools, token_ids, random.Random(1))
        assert (text == answer) == (reader.text == answer)
        assert (text == call) == bool(reader.calls)
        assert not reader.cuts_call


def test_a_text_that_begins_like_a_call_is_held_until_it_is_told_apart() -> None:
    vocabulary = plain()
    tools = tools_of("hermes")
    reader = AnswerReader(vocabulary.tokenizer, tools=tools, may_be_text=True)

    shown = [reader.push([token_id]) for token_id in vocabulary.encode("<tool_cake> or")]

    assert shown[:7] == [""] * 7
    assert "".join(shown) == "<tool_cake> or"
    assert reader.finish() == ""


def test_a_text_that_ends_like_the_beginning_of_a_call_is_text() -> None:
    vocabulary = plain()
    tools = tools_of("hermes")
    eos = next(iter(vocabulary.vocabulary.eos_ids))
    for end in ([], [eos]):
        reader = read(vocabulary, tools, vocabulary.encode("<tool") + end, random.Random(1))
        assert (reader.text, reader.calls, reader.cuts_call) == ("<tool", (), False)


def test_a_fork_goes_on_by_itself() -> None:
    vocabulary = plain()
    tools = tools_of("json-list")
    form = compile_regex(r"\[+", vocabulary.vocabulary)
    state = CallsOrForm(tools.constraint.start(), form.start())
    state.advance(vocabulary.encode("[")[0])

    copy = state.fork()
    copy.advance(vocabulary.encode("[")[0])

    assert vocabulary.decode(vocabulary.allowed(copy)) == "["
    assert set(vocabulary.decode(vocabulary.allowed(state))) >= {"[", "{"}
    with pytest.raises(ValueError, match="not allowed"):
        copy.advance(vocabulary.encode("{")[0])
    with pytest.raises(ValueError, match="not allowed"):
        state.advance(vocabulary.encode("x")[0])


def test_a_form_that_is_to_be_closed_is_closed_beside_calls() -> None:
    vocabulary = plain()
    tools = tools_of("hermes")
    form = ClosingState(schema_form().start())
    state = CallsOrForm(tools.constraint.start(), form)
    state.limit_to(24)
    written: list[int] = []

    while not state.is_complete:
        forced = state.forced_tokens()
        allowed = vocabulary.allowed(state)
        wanted = [*vocabulary.encode("z{"), *allowed]
        token_id = forced[0] if forced else next(one for one in wanted if one in allowed)
        if state.advance(token_id):
            written.append(token_id)

    assert len(written) <= 24
    assert state.was_closed
    validate_json(vocabulary.decode(written), SCHEMA)


def test_masks_are_written_in_full() -> None:
    vocabulary = plain()
    tools = tools_of("hermes")
    form = compile_regex("[xy]", vocabulary.vocabulary).start()
    mask = np.full(vocabulary.vocabulary.num_mask_words, 0xFFFFFFFF, dtype=np.uint32)

    CallsOrForm(tools.constraint.start(), form).fill_mask(mask)

    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert {vocabulary.decode([int(one)])[0] for one in np.flatnonzero(bits)} == {"<", "x", "y"}
