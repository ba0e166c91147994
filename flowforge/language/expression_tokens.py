"""The tokens of an expression, read one at a time.

A `-` belongs to a number only where a value may begin: `n -1` is a subtraction, `[-1]` is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

TokenKind = Literal["name", "word", "number", "string", "symbol", "end", "unknown"]
RESERVED_WORDS = frozenset(("and", "or", "not", "in", "if", "else", "true", "false", "null"))

_SPACE = re.compile(r"\s*")
_TOKEN = re.compile(
    r"""(?P<name>[^\W\d][\w-]*)
    |(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<symbol>==|!=|<=|>=|\?\?|[<>()\[\]|.,+*/%-])""",
    re.VERBOSE | re.DOTALL,
)
_NEGATIVE = re.compile(r"-[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Token:
    """One token. text: its characters; "" at the end, one character where nothing fits."""

    kind: TokenKind
    text: str
    start: int

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.start + len(self.text)


def token_at(text: str, position: int, *, begins_value: bool) -> Token:
    """The token behind the white space at a position."""
    space = _SPACE.match(text, position)
    start = position if space is None else space.end()
    if start >= len(text):
        return Token("end", "", len(text))
    match = _NEGATIVE.match(text, start) if begins_value else None
    if match is not None:
        return Token("number", match[0], start)
    match = _TOKEN.match(text, start)
    if match is None:
        return Token("unknown", text[start], start)
    found = match[0]
    match match.lastgroup:
        case "name":
            return Token("word" if found in RESERVED_WORDS else "name", found, start)
        case "number":
            return Token("number", found, start)
        case "string":
            return Token("string", found, start)
        case _:
            return Token("symbol", found, start)
