"""Texts compiled into constraints: one of several, or all of it matching a regular expression."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.grammars.constraint import CompiledConstraint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLMatcher, LLTokenizer

    from flowforge.grammars.vocabulary import Vocabulary

_SHOWN_CHARS = 60
_HELP = (
    "the syntax is that of Rust's regex crate: no look-around and no back-references; "
    "'^' and '$' are not needed, since all of the text must match"
)


def compile_choice(choices: Sequence[str], vocabulary: Vocabulary) -> CompiledConstraint:
    """Compile a constraint that allows exactly these texts.

    Raises WorkflowError WF415 when there are none, or too many for the mask.
    """
    from llguidance import LLMatcher

    if not choices:
        raise WorkflowError("WF415", "a choice needs at least one text")
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in choices)
    grammar = LLMatcher.grammar_from_lark(f"start: {texts}")
    matcher = LLMatcher(vocabulary.backend, grammar, log_level=0)
    if matcher.is_error():
        reason = _reason(matcher)
        raise WorkflowError("WF415", f"a choice of {len(choices)} texts cannot be used: {reason}")
    return CompiledConstraint(matcher, vocabulary)


def compile_regex(pattern: str, vocabulary: Vocabulary) -> CompiledConstraint:
    """Compile a constraint that allows the texts of which all matches.

    Raises WorkflowError WF414 for a pattern that is invalid, too large, or uses what no automaton
    can do.
    """
    return CompiledConstraint(_regex_matcher(vocabulary.backend, pattern), vocabulary)


def matches_regex(pattern: str, text: str) -> bool:
    """Whether all of a text matches, in time linear in the text, as the constraint would have it.

    Raises WorkflowError WF414 like `compile_regex`.
    """
    matcher = _regex_matcher(_byte_tokenizer(), pattern)
    token_ids = list(text.encode())
    if matcher.validate_tokens(token_ids) < len(token_ids):
        return False
    if token_ids:
        matcher.consume_tokens(token_ids)
    return bool(matcher.is_accepting())


def _regex_matcher(tokenizer: LLTokenizer, pattern: str) -> LLMatcher:
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(pattern), log_level=0)
    if matcher.is_error():
        shown = pattern if len(pattern) <= _SHOWN_CHARS else f"{pattern[:_SHOWN_CHARS]}…"
        raise WorkflowError(
            "WF414", f"regex {shown!r} cannot be used: {_reason(matcher)}", help=_HELP
        )
    return matcher


@lru_cache(maxsize=1)
def _byte_tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _reason(matcher: LLMatcher) -> str:
    lines: list[str] = [line.strip() for line in matcher.get_error().splitlines()]
    told = [line for line in lines if line.startswith("error:")]
    return told[0].removeprefix("error: ") if told else lines[0]
