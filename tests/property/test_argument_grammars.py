"""Arguments under grammars: what a walk writes in any format is read, and lark takes it."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from byte_vocabulary import byte_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from flowforge.grammars.tool_formats import (
    TOOL_FORMATS,
    ArgumentGrammar,
    ToolDefinition,
    ToolsRequest,
    compile_tools,
)
from flowforge.grammars.tool_formats.description import TaggedSyntax, Text

if TYPE_CHECKING:
    from byte_vocabulary import ByteVocabulary

    from flowforge.grammars.tool_formats.compilation import CompiledTools

GRAMMARS = {
    "ignored spaces": 'start: NAME ("," NAME)*\nNAME: /[a-c]+/\n%ignore /[ \\t\\n]+/\n',
    "quoted texts": 'start: item+\nitem: "\'" /[^\']+/ "\'" | "\\"" /[a-z]+/ "\\"" | /[0-9]+/\n',
    "marks": 'start: "if " NAME OP NAME ("\\n" start)?\nOP: "<" | ">" | "=="\nNAME: /[a-z|\\/]+/\n',
    "nested": 'start: "(" start* ")" | /[αβ]/\n',
}
MARKS = ["<tool_call>", "</tool_call>", '<|"|>', "<escape>", "<arg_key>", "</arg_value>"]


def tool_with(grammar: ArgumentGrammar) -> ToolDefinition:
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["text"],
    }
    return ToolDefinition("run", "", parameters, {"text": grammar})


@cache
def compiled_tools(name: str, grammar: str, *, has_control: bool) -> CompiledTools:
    tool = tool_with(ArgumentGrammar(GRAMMARS[grammar], "<grammar>"))
    request = ToolsRequest((tool,), "required", 2)
    words = vocabulary(has_control=has_control).vocabulary
    return compile_tools(request, TOOL_FORMATS[name], words)


@cache
def vocabulary(*, has_control: bool) -> ByteVocabulary:
    return byte_vocabulary(MARKS if has_control else [])


@pytest.mark.parametrize("has_control", [True, False], ids=["control tokens", "plain text"])
@pytest.mark.parametrize("name", TOOL_FORMATS)
@settings(max_examples=8)
@given(grammar=st.sampled_from(sorted(GRAMMARS)), seed=st.integers(min_value=0))
def test_what_a_walk_writes_into_an_argument_is_in_its_grammar(
    name: str, has_control: bool, grammar: str, seed: int
) -> None:
    compiled = compiled_tools(name, grammar, has_control=has_control)
    tool = compiled.request.tools[0]

    text = walk(compiled, vocabulary(has_control=has_control), random.Random(seed))

    assert compiled.loose == ()
    parser = compiled.parser()
    parser.push(text)
    parser.finish()
    assert parser.answer.is_whole, text
    assert parser.answer.calls
    for call in parser.answer.calls:
        said = call.arguments["text"]
        assert isinstance(said, str)
        tool.grammars["text"].judge(said)


def walk(compiled: CompiledTools, vocabulary: ByteVocabulary, pick: random.Random) -> str:
    """A text that the mask allows. It often writes what ends something, so that it ends."""
    state = compiled.constraint.start()
    syntax = compiled.format.arguments
    closing = syntax.after_value if isinstance(syntax, TaggedSyntax) else syntax.string_close
    texts = [part.text for part in compiled.format.call if isinstance(part, Text)]
    endings = [vocabulary.encode(one) for one in [closing, "'", ")", "\n", "}", *texts]]
    token_ids: list[int] = []
    planned: list[int] = []
    while not state.is_complete and not (state.is_accepting and pick.random() < 0.2):
        assert len(token_ids) < 3_000, vocabulary.decode(token_ids)[-200:]
        if not planned and pick.random() < (0.2 if len(token_ids) < 300 else 0.9):
            planned = list(pick.choice(endings))
        allowed = vocabulary.allowed(state)
        assert allowed, vocabulary.decode(token_ids)[-200:]
        planned = planned if planned[:1] and planned[0] in allowed else []
        token_id = planned.pop(0) if planned else pick.choice(allowed)
        state.advance(token_id)
        token_ids.append(token_id)
    return vocabulary.decode(token_ids)
