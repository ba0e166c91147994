"""Filters on texts, and those that make a text of any value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.filter_rules import (
    STRINGS,
    Argument,
    Filter,
    always,
    check_length,
    count_of,
    string_of,
)
from flowforge.language.json_values import (
    EvaluationError,
    json_text,
    problem_with_json,
    read_json,
    text_of_value,
    within_limits,
)
from flowforge.language.types import ANY, BOOLEAN, INTEGER, NULL, NUMBER, STRING, join_types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.language.program import JsonValue

_MAX_NUMBER_CHARS = 60


def _lines(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    text = string_of("lines", value).replace("\r\n", "\n").removesuffix("\n")
    lines: list[JsonValue] = [*text.split("\n")] if text else []
    return lines


def _json(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return json_text(value)


def _text(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return text_of_value(value)


def _trim(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return string_of("trim", value).strip()


def _upper(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return string_of("upper", value).upper()


def _lower(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return string_of("lower", value).lower()


def _split(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    separator = string_of("split", arguments[0])
    if not separator:
        raise EvaluationError("WF404", "filter 'split' takes a separator that is not empty")
    return [*string_of("split", value).split(separator)]


def _replace(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    text, old, new = (string_of("replace", one) for one in (value, *arguments))
    if not old:
        raise EvaluationError("WF404", "filter 'replace' takes a text that is not empty")
    check_length("replace", len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def _starts_with(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    text, start = (string_of("starts_with", one) for one in (value, arguments[0]))
    return text.startswith(start)


def _ends_with(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    text, end = (string_of("ends_with", one) for one in (value, arguments[0]))
    return text.endswith(end)


def _truncate(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    text, most = string_of("truncate", value), count_of("truncate", arguments[0])
    ending = string_of("truncate", arguments[1]) if len(arguments) > 1 else "…"
    if len(text) <= most:
        return text
    return text[: max(0, most - len(ending))] + ending[:most]


def _number(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    text = string_of("number", value).strip()
    # Python reads more than JSON says: 1_000, infinity, digits of every script.
    is_plain = text.isascii() and "_" not in text and len(text) <= _MAX_NUMBER_CHARS
    if not is_plain or not text.lstrip("+-.")[:1].isdigit():
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    if number in (float("inf"), float("-inf")):
        return None
    return int(text) if text.lstrip("+-").isdigit() else number


def _from_json(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    try:
        parsed = read_json(string_of("from_json", value))
    except ValueError:
        return None
    return None if problem_with_json(parsed) is not None else within_limits(parsed)


TEXT_FILTERS = (
    Filter(
        "lines",
        "a text's lines",
        STRING,
        (),
        always(STRINGS),
        _lines,
        '"a\\nb" | lines',
    ),
    Filter(
        "split",
        "a text's pieces between separators",
        STRING,
        (Argument("separator", STRING),),
        always(STRINGS),
        _split,
        '"a, b" | split(", ")',
    ),
    Filter(
        "trim",
        "a text without the white space around it",
        STRING,
        (),
        always(STRING),
        _trim,
        '"  a " | trim',
    ),
    Filter("upper", "a text in capitals", STRING, (), always(STRING), _upper, '"Yes" | upper'),
    Filter("lower", "a text in small letters", STRING, (), always(STRING), _lower, '"Yes" | lower'),
    Filter(
        "replace",
        "a text with one part in place of another, everywhere",
        STRING,
        (Argument("old", STRING), Argument("new", STRING)),
        always(STRING),
        _replace,
        '"a-b-c" | replace("-", " ")',
    ),
    Filter(
        "truncate",
        "a text of at most so many characters; what marks the cut is among them",
        STRING,
        (Argument("characters", INTEGER), Argument("mark", STRING, False)),
        always(STRING),
        _truncate,
        '"a long story" | truncate(7)',
    ),
    Filter(
        "starts_with",
        "whether a text begins with another",
        STRING,
        (Argument("start", STRING),),
        always(BOOLEAN),
        _starts_with,
        '"Yes, it is" | starts_with("Yes")',
    ),
    Filter(
        "ends_with",
        "whether a text ends with another",
        STRING,
        (Argument("end", STRING),),
        always(BOOLEAN),
        _ends_with,
        '"Is it?" | ends_with("?")',
    ),
    Filter(
        "from_json",
        "the value that a text of JSON says, null when it says none",
        STRING,
        (),
        always(ANY),
        _from_json,
        "'[1, {\"a\": true}]' | from_json",
    ),
    Filter(
        "number",
        "the number that a text says, null when it says none",
        STRING,
        (),
        always(join_types((NUMBER, NULL))),
        _number,
        '" 42 " | number',
    ),
    Filter(
        "json", "any value as one line of JSON", ANY, (), always(STRING), _json, '["é", 1] | json'
    ),
    Filter(
        "text",
        "a value as it would be written into text",
        ANY,
        (),
        always(STRING),
        _text,
        "1.50 | text",
    ),
)
