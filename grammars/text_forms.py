"""Texts compiled into constraints: one of several, or all of it matching a regular expression."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.grammars.compilation import (
    GrammarRefused,
    byte_tokenizer,
    compile_mask_grammar,
    matches,
)
from flowforge.grammars.constraint import CompiledConstraint
from flowforge.grammars.form_matching import choice_grammar, regex_matcher, unknown_class
from flowforge.patterns import RefusedPattern, what_no_mask_keeps

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
    if not choices:
        raise WorkflowError("WF415", "a choice needs at least one text")
    try:
        return compile_mask_grammar(choice_grammar(choices), vocabulary)
    except GrammarRefused as refused:
        raise WorkflowError(
            "WF415",
            f"a choice of {len(choices)} texts cannot be used: {refused.reason}",
            help="give fewer or shorter texts, or choose in two steps: a group, then one of it",
        ) from refused


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
    return matches(_regex_matcher(byte_tokenizer(), pattern), text)


def why_refused(pattern: str) -> RefusedPattern | None:
    """Why no constraint can hold a text to a regex; None where one can."""
    try:
        regex_matcher(pattern)
    except GrammarRefused as refused:
        return _refusal_of(pattern, refused)
    return None


def _regex_matcher(tokenizer: LLTokenizer, pattern: str) -> LLMatcher:
    try:
        return regex_matcher(pattern, tokenizer)
    except GrammarRefused as refused:
        shown = pattern if len(pattern) <= _SHOWN_CHARS else f"{pattern[:_SHOWN_CHARS]}…"
        why = _refusal_of(pattern, refused)
        raise WorkflowError(
            "WF414", f"regex {shown!r} cannot be used: {why.reason}", help=why.help
        ) from refused


def _refusal_of(pattern: str, refused: GrammarRefused) -> RefusedPattern:
    found = unknown_class(pattern) or what_no_mask_keeps(pattern)
    if found is None:
        return RefusedPattern(refused.reason, _HELP)
    return RefusedPattern(found.reason, f"{found.instead}; {_HELP}")
