"""Answers with tools, read from tokens: also those that end within a character of a mark."""

from __future__ import annotations

import pytest
from byte_vocabulary import byte_vocabulary

from flowforge.backends.answer_reader import AnswerReader
from flowforge.grammars.tool_formats import (
    TOOL_FORMATS,
    ToolCall,
    ToolDefinition,
    ToolsRequest,
    compile_tools,
    write_calls,
)

TOOL = ToolDefinition("say", "", {"type": "object", "properties": {"word": {"type": "string"}}})
CALL = ToolCall("say", {"word": "né"})


@pytest.mark.parametrize("name", ["deepseek-r1", "glm", "pythonic"])
def test_an_answer_may_be_cut_after_any_token(name: str) -> None:
    vocabulary = byte_vocabulary()
    format = TOOL_FORMATS[name]
    request = ToolsRequest((TOOL,), "required")
    tools = compile_tools(request, format, vocabulary.vocabulary)
    token_ids = vocabulary.encode(write_calls([CALL], [TOOL], format))

    for size in range(len(token_ids) + 1):
        is_whole = size == len(token_ids)
        reader = AnswerReader(vocabulary.tokenizer, tools=tools)
        reader.push(token_ids[:size])
        reader.finish()
        assert reader.cuts_call == (not is_whole)
        assert not is_whole or reader.calls == (CALL,)


def test_what_a_model_says_before_its_calls_is_its_text() -> None:
    vocabulary = byte_vocabulary(["<tool_call>", "</tool_call>"])
    tools = compile_tools(ToolsRequest((TOOL,)), TOOL_FORMATS["hermes"], vocabulary.vocabulary)
    call = write_calls([CALL], [TOOL], TOOL_FORMATS["hermes"])
    reader = AnswerReader(vocabulary.tokenizer, tools=tools)

    shown = [reader.push([token_id]) for token_id in vocabulary.encode(f"Let me see. {call}")]

    assert "".join(shown) + reader.finish() == reader.text == "Let me see. "
    assert reader.calls == (CALL,)
