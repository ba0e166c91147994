"""Filters whose results or types are worth more than an example on the reference page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.language.evaluation import evaluate_node
from flowforge.language.expression_parser import parse_expression
from flowforge.language.json_values import EvaluationError
from flowforge.language.loader import load_text
from flowforge.language.program import Set
from flowforge.language.token_meter import MeasuredNames, WordMeter
from flowforge.language.types import display_type

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue


def value(text: str, **names: JsonValue) -> JsonValue:
    return evaluate_node(parse_expression(text), MeasuredNames(names, WordMeter()))


def type_of(text: str) -> str:
    inputs = (
        "{ texts: { type: array, items: { type: string } }, text: string, o: { type: object, "
        "properties: { a: { type: integer } }, required: [a], additionalProperties: false } }"
    )
    head = f"flowforge: 1\nname: t\ninputs: {inputs}\n"
    program = load_text(f"{head}steps:\n  a: {{ set: '${{ {text} }}' }}\n").program
    assert program is not None
    verb = program.steps["a"].verb
    assert isinstance(verb, Set)
    return display_type(verb.value.type)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[] | flatten", []),
        ("[1, 2] | zip(['a'])", [[1, "a"]]),
        ("[] | chunks(3)", []),
        ("'{' | from_json", None),
        ("'[NaN]' | from_json", None),
        ('\'{"a": 1, "a": 2}\' | from_json', None),
        ("'' | starts_with('')", True),
        ("'' | truncate_tokens(0)", ""),
        ("'one two' | truncate_tokens(0)", ""),
        ("'one two' | truncate_tokens(9)", "one two"),
        ("'' | split_tokens(3)", []),
        ("'a b c d e' | split_tokens(2) | join('/')", "a b /c d /e"),
    ],
)
def test_filters_hold_at_their_edges(text: str, expected: JsonValue) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    "text",
    ["[1] | flatten", "[1] | chunks(0)", "[1] | chunks(-1)", "'a' | split_tokens(0)"],
)
def test_what_a_filter_cannot_do_is_an_error(text: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        value(text)

    assert caught.value.code == "WF404"


def test_the_pieces_of_a_split_text_are_the_whole_text() -> None:
    text = " a  bb\n\nccc d " * 20

    pieces = value("whole | split_tokens(7)", whole=text)

    assert isinstance(pieces, list)
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[inputs.texts, inputs.texts] | flatten", "array<string>"),
        ("inputs.texts | zip([1])", "array<array<string | integer>>"),
        ("inputs.texts | chunks(2)", "array<array<string>>"),
        ("inputs.o | items", "array<{key: string, value: integer}>"),
        ("inputs.text | split_tokens(5)", "array<string>"),
        ("inputs.text | tokens", "integer"),
        ("inputs.text | truncate_tokens(5)", "string"),
        ('inputs.text | starts_with("a")', "boolean"),
        ("inputs.text | from_json", "any"),
    ],
)
def test_filters_know_the_type_of_what_they_give(text: str, expected: str) -> None:
    assert type_of(text) == expected
