"""Matchers of forms over single bytes: what a text may be, without any model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flowforge.grammars.compilation import GrammarRefused, build_matcher, byte_tokenizer
from flowforge.grammars.json_grammar import json_grammars
from flowforge.grammars.json_options import STRICT, JsonOptions
from flowforge.grammars.schema_dialect import to_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLMatcher

    from flowforge.grammars.schema_dialect import JsonInput


def schema_matcher(schema: JsonInput, options: JsonOptions = STRICT) -> LLMatcher:
    """Of the JSON of a schema. Raises GrammarRefused."""
    reason = GrammarRefused("it has no grammar")
    for grammar in json_grammars(to_plain(schema), options):
        try:
            return build_matcher(byte_tokenizer(), grammar.text)
        except GrammarRefused as refused:
            reason = refused
    raise reason


def choice_matcher(choices: Sequence[str]) -> LLMatcher:
    """Of some texts. Raises GrammarRefused."""
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in choices)
    grammar = json.dumps({"grammars": [{"lark_grammar": f"start: {texts}"}]})
    return build_matcher(byte_tokenizer(), grammar)


def regex_matcher(pattern: str) -> LLMatcher:
    """Of the texts of which all matches. Raises GrammarRefused."""
    from llguidance import LLMatcher

    return build_matcher(byte_tokenizer(), LLMatcher.grammar_from_regex(pattern))
