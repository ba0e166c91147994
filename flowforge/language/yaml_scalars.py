"""Plain scalars by the core schema of YAML 1.2, and nothing more.

`no`, `on`, `1:30`, `1_000` and `2024-10-01` are texts; `0123` is the number 123; `0o17` is 15.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLEANS = {
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# Python refuses to read longer integers, and no JSON reader needs them.
_MAX_DIGITS = 400


class ScalarError(Exception):
    """A number that JSON cannot say."""


def value_of_plain(text: str) -> JsonValue:
    """The value of a plain scalar. Raises ScalarError."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if not (text[0].isdigit() or text[0] in "+-."):
        return text
    return _number_or_text(text)


def _number_or_text(text: str) -> JsonValue:
    if _NOT_FINITE.fullmatch(text):
        raise ScalarError(f"{text} is no JSON number")
    for pattern, base in ((_DECIMAL, 10), (_OCTAL, 8), (_HEXADECIMAL, 16)):
        if pattern.fullmatch(text):
            if len(text) > _MAX_DIGITS:
                raise ScalarError(f"a number of {len(text)} digits is too long")
            return int(text if base == 10 else text[2:], base)
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    if math.isinf(number):
        raise ScalarError("the number is too large")
    return number
