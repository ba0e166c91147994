"""JSON values as expressions meet them: their texts, kinds, equality and limits.

Values share parts freely (`[x, x]` holds x once), so a value's size is that of the whole written
out: without a limit, thirty steps that each say `[last, last]` would make a thousand million items.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue

MAX_TEXT_CHARS = 8_000_000
MAX_VALUE_PARTS = 200_000
MAX_VALUE_DEPTH = 200
_MAX_INTEGER_BITS = 1_024
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json(text: str) -> JsonValue:
    """The value of a JSON text; infinite and missing numbers are for `problem_with_json` to find.

    Raises ValueError, also for a key that is there twice and for what is nested too deep.
    """
    try:
        value: JsonValue = json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return value


def _unique_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    keys_seen: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in keys_seen:
            raise ValueError(f"key {key!r} is there twice")
        keys_seen[key] = value
    return keys_seen


def problem_with_json(value: object) -> str | None:
    """Why a Python value cannot be a value of a workflow; None when it can."""
    pending: list[tuple[object, int]] = [(value, 0)]
    while pending:
        part, depth = pending.pop()
        if depth > MAX_VALUE_DEPTH:
            return f"it is nested deeper than {MAX_VALUE_DEPTH} levels"
        problem = None
        if isinstance(part, str):
            problem = problem_with_text(part)
        elif isinstance(part, float):
            problem = None if math.isfinite(part) else f"{part} is no number of JSON"
        elif isinstance(part, list):
            pending += [(item, depth + 1) for item in cast("list[object]", part)]
        elif isinstance(part, dict):
            fields = cast("dict[object, object]", part)
            keys = (key for key in fields if not isinstance(key, str))
            problem = next((f"{key!r} is no string, as every key must be" for key in keys), None)
            pending += [(one, depth + 1) for pair in fields.items() for one in pair]
        elif part is not None and not isinstance(part, int):
            problem = f"a Python {type(part).__name__} is no value of JSON"
        if problem is not None:
            return problem
    return None


def problem_with_text(text: str) -> str | None:
    """Why a Python string is no Unicode text; None when it is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        char = ord(text[error.start])
        # Python's stand-in for a byte that it could not decode (PEP 383).
        what = f"byte 0x{char - 0xDC00:02x}" if 0xDC80 <= char <= 0xDCFF else f"U+{char:04X}"
        return f"{what} at position {error.start} is no character of UTF-8"
    return None


def with_whole_characters(text: str) -> str:
    r"""A text with each pair of surrogates as the character that it stands for.

    JSON escapes what lies beyond U+FFFF in two halves, `"\ud83d\ude00"`. Halves alone are left.
    """
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


class EvaluationError(Exception):
    """A value does not allow what an expression asks of it; the expression adds its place."""

    def __init__(self, code: str, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.help = help


def text_of_value(value: JsonValue) -> str:
    """How a value is written into text. Raises EvaluationError, for null first of all."""
    if isinstance(value, str):
        return value
    if value is None:
        help = 'say what to write instead: ${ … ?? "nothing" }'
        raise EvaluationError("WF401", "null cannot be written into text", help)
    return json_text(value)


def json_text(value: JsonValue) -> str:
    """One line of JSON. Raises EvaluationError for what JSON cannot say."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise EvaluationError("WF403", f"the value cannot be written as JSON: {error}") from error


def kind_of_value(value: JsonValue) -> str:
    """The word for a value's kind in messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"


def json_equal(one: JsonValue, other: JsonValue) -> bool:
    """Equality of JSON values: 1 equals 1.0, and true is no number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[key], other[key]) for key in one)
    return one == other


def order_of_values(left: JsonValue, right: JsonValue) -> int:
    """Below 0, 0 or above 0 as left stands before, beside or behind right.

    Raises EvaluationError unless both are numbers or both are strings.
    """
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    are_booleans = isinstance(left, bool) or isinstance(right, bool)
    if isinstance(left, int | float) and isinstance(right, int | float) and not are_booleans:
        return (left > right) - (left < right)
    message = f"{kind_of_value(left)} and {kind_of_value(right)} have no order"
    raise EvaluationError("WF404", message, "compare two numbers or two strings")


def json_key(value: JsonValue) -> str:
    """A text that two values share when `json_equal` holds for them, and no others."""
    return json.dumps(_canonical(value), sort_keys=True)


def _canonical(value: JsonValue) -> JsonValue:
    match value:
        case float():
            return int(value) if value.is_integer() else value
        case list():
            return [_canonical(item) for item in value]
        case dict():
            return {name: _canonical(item) for name, item in value.items()}
        case _:
            return value


def within_limits(value: JsonValue) -> JsonValue:
    """The value itself; its characters and parts are counted as if it were written out.

    Raises EvaluationError WF403.
    """
    num_parts = num_chars = 0
    pending: list[tuple[JsonValue, int]] = [(value, 0)]
    while pending:
        part, depth = pending.pop()
        num_parts += 1
        num_chars += len(part) if isinstance(part, str) else 0
        if num_parts > MAX_VALUE_PARTS or num_chars > MAX_TEXT_CHARS:
            limits = f"{MAX_VALUE_PARTS:,} parts or {MAX_TEXT_CHARS:,} characters"
            raise EvaluationError("WF403", f"a value has over {limits}", "pass less of it on")
        if depth > MAX_VALUE_DEPTH:
            message = f"a value is nested deeper than {MAX_VALUE_DEPTH} levels"
            raise EvaluationError("WF403", message, "join lists with 'concat', which does not nest")
        if isinstance(part, list):
            pending += [(item, depth + 1) for item in part]
        elif isinstance(part, dict):
            num_chars += sum(map(len, part))
            pending += [(item, depth + 1) for item in part.values()]
    return value


def finite_number(value: int | float) -> int | float:
    """The number itself. Raises EvaluationError WF403 for what JSON or a machine cannot hold."""
    is_finite = value == value and value not in (float("inf"), float("-inf"))
    is_small = isinstance(value, float) or value.bit_length() <= _MAX_INTEGER_BITS
    if is_finite and is_small:
        return value
    raise EvaluationError("WF403", "a number that grows too large", "bound what is multiplied")
