"""Filters that count in tokens of the run's model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.filter_rules import (
    STRINGS,
    Argument,
    Filter,
    always,
    count_of,
    string_of,
)
from flowforge.language.json_values import EvaluationError, within_limits
from flowforge.language.types import INTEGER, STRING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.language.filter_rules import TokenFunction
    from flowforge.language.program import JsonValue
    from flowforge.language.token_meter import TokenMeter
    from flowforge.language.types import Type


def _tokens(value: JsonValue, _arguments: Sequence[JsonValue], meter: TokenMeter) -> JsonValue:
    return meter.count_tokens(string_of("tokens", value))


def _truncate(value: JsonValue, arguments: Sequence[JsonValue], meter: TokenMeter) -> JsonValue:
    text = string_of("truncate_tokens", value)
    return meter.cut_text(text, count_of("truncate_tokens", arguments[0]))


def _split(value: JsonValue, arguments: Sequence[JsonValue], meter: TokenMeter) -> JsonValue:
    rest, most = string_of("split_tokens", value), count_of("split_tokens", arguments[0])
    pieces: list[JsonValue] = []
    while rest:
        piece = meter.cut_text(rest, most)
        if not piece:
            # One character may be several tokens, so that no piece of it is short enough.
            message = f"filter 'split_tokens' cannot make pieces of at most {most} tokens"
            raise EvaluationError("WF404", message, "allow more tokens in a piece")
        pieces.append(piece)
        rest = rest[len(piece) :]
    return within_limits(pieces)


def _token_filter(
    name: str,
    summary: str,
    result: Type,
    function: TokenFunction,
    example: str,
    arguments: tuple[Argument, ...] = (),
) -> Filter:
    return Filter(name, summary, STRING, arguments, always(result), None, example, function)


_COUNT = (Argument("count", INTEGER),)
TOKEN_FILTERS = (
    _token_filter(
        "tokens", "how many tokens a text has", INTEGER, _tokens, '"one two three" | tokens'
    ),
    _token_filter(
        "truncate_tokens", "a text's beginning, of at most so many tokens", STRING, _truncate,
        '"one two three" | truncate_tokens(2)', _COUNT,
    ),
    _token_filter(
        "split_tokens", "a text in pieces of at most so many tokens", STRINGS, _split,
        '"one two three" | split_tokens(2)', _COUNT,
    ),
)  # fmt: skip
