"""Matchers of forms: what a text may be; over single bytes where no model is said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flowforge.grammars.compilation import (
    GrammarRefused,
    build_matcher,
    byte_tokenizer,
    matcher_grammar,
    require_characters,
)
from flowforge.grammars.json_grammar import json_grammars
from flowforge.grammars.json_options import STRICT, JsonOptions
from flowforge.grammars.schema_dialect import to_plain
from flowforge.patterns import classes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLMatcher, LLTokenizer

    from flowforge.grammars.schema_dialect import JsonInput
    from flowforge.patterns import Unmaskable


def schema_matcher(schema: JsonInput, options: JsonOptions = STRICT) -> LLMatcher:
    """Of the JSON of a schema. Raises GrammarRefused."""
    reason = GrammarRefused("it has no grammar")
    for grammar in json_grammars(to_plain(schema), options):
        try:
            return build_matcher(byte_tokenizer(), grammar.text)
        except GrammarRefused as refused:
            reason = refused
    raise reason


def choice_grammar(choices: Sequence[str]) -> str:
    """The mask grammar of some texts.

    They are one terminal: the lexer's automaton has room for tens of thousands, while as many
    alternatives of a rule would each be gone along by the parser. Raises GrammarRefused.
    """
    for text in choices:
        require_characters(text)
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in choices)
    return f"start: TEXT\nTEXT: {texts}"


def choice_matcher(choices: Sequence[str]) -> LLMatcher:
    """Of some texts. Raises GrammarRefused."""
    return build_matcher(byte_tokenizer(), matcher_grammar(choice_grammar(choices)))


def regex_matcher(pattern: str, tokenizer: LLTokenizer | None = None) -> LLMatcher:
    """Of the texts of which all matches, over a tokenizer's tokens. Raises GrammarRefused."""
    from llguidance import LLMatcher

    require_characters(pattern)
    over = byte_tokenizer() if tokenizer is None else tokenizer
    return build_matcher(over, LLMatcher.grammar_from_regex(pattern))


def unknown_class(pattern: str) -> Unmaskable | None:
    r"""The first of a pattern's classes of Unicode, as `\p{L}`, that no mask knows."""
    for one in classes_of(pattern):
        try:
            regex_matcher(one.text)
        except GrammarRefused:
            return one
    return None
