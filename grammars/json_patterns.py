"""The patterns of JSON Schemas, read by the judge in the dialect in which the mask reads them.

Python's `re` has another dialect, and takes exponential time over some patterns. It is asked only
for what no mask can do.
"""

from __future__ import annotations

import json
import re
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.grammars.compilation import GrammarRefused, build_matcher, byte_tokenizer, matches

if TYPE_CHECKING:
    from llguidance import LLMatcher

_SHOWN_CHARS = 60


def why_not_masked(pattern: str) -> str | None:
    """Why a mask cannot hold a text to a pattern; None where it can."""
    compiled = _compiled(pattern)
    return compiled if isinstance(compiled, str) else None


def why_no_regex(pattern: str) -> str | None:
    """Why neither a mask nor the judge can read a pattern; None where one of them can."""
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return None if why_not_masked(pattern) is None else str(error)
    return None


def finds(pattern: str, text: str) -> bool:
    """Whether some part of a text matches a pattern.

    Raises WorkflowError WF411 for a pattern that Python cannot read either.
    """
    compiled = _compiled(pattern)
    if not isinstance(compiled, str):
        quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
        try:
            return matches(compiled.deep_copy(), quoted)
        except UnicodeEncodeError:  # half of a surrogate pair is no text
            return False
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        shown = pattern[:_SHOWN_CHARS]
        raise WorkflowError("WF411", f"pattern {shown!r} cannot be used: {compiled}") from error


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> LLMatcher | str:
    """A matcher at its start of JSON texts with the pattern in them, or why there is none."""
    from llguidance import LLMatcher

    schema = json.dumps({"type": "string", "pattern": pattern})
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    try:
        return build_matcher(byte_tokenizer(), grammar)
    except GrammarRefused as refused:
        return refused.reason
