"""Values that JSON cannot say, on every way into a run."""

from __future__ import annotations

import math
from typing import Any

import pytest

import flowforge as ff
from flowforge.errors import WorkflowError, WrongInputsError
from flowforge.language.inputs import resolve_inputs
from flowforge.language.loader import load_text, require_program

PROGRAM = """\
flowforge: 1
name: t
inputs: { q: string, n: number, l: { type: array } }
steps: { a: { user: "${ inputs.q } ${ inputs.n } ${ inputs.l }", gen: {} } }
outputs: { a: "${ a }" }
"""
GOOD: dict[str, Any] = {"q": "text 🚲", "n": 1.5, "l": [None, True, {"a": "b"}]}


def deep(levels: int) -> object:
    return [] if levels == 0 else [deep(levels - 1)]


BAD: list[tuple[str, object, str]] = [
    ("n", math.inf, "inf is no number of JSON"),
    ("n", math.nan, "nan is no number of JSON"),
    ("n", "1e400", "inf is no number of JSON"),
    ("n", "-Infinity", "-inf is no number of JSON"),
    ("l", [{"a": [math.nan]}], "nan is no number of JSON"),
    ("l", '[{"a": 1, "a": 2}]', "got the text .*: key 'a' is there twice"),
    ("l", "[1", "got the text '\\[1', which is no JSON: expecting"),
    ("l", "hello", "got the text 'hello'\\n"),
    ("q", "a\ud800", "U\\+D800 at position 1 is no character of UTF-8"),
    ("q", "\udcff\udcfe", "byte 0xff at position 0 is no character of UTF-8"),
    ("l", [{"\ud800": 1}], "U\\+D800"),
    ("l", '["\\ud800"]', "U\\+D800"),
    ("q", object(), "a Python object is no value of JSON"),
    ("l", ("a", "b"), "a Python tuple is no value of JSON"),
    ("l", [{1: "a"}], "1 is no string, as every key must be"),
    ("l", deep(300), "nested deeper than 200 levels"),
]


@pytest.mark.parametrize(("name", "value", "problem"), BAD)
def test_a_value_that_json_cannot_say_is_refused_with_its_input(
    name: str, value: Any, problem: str
) -> None:
    program = require_program(load_text(PROGRAM))

    with pytest.raises(WorkflowError, match=f"input '{name}' expects .*{problem}") as caught:
        resolve_inputs(program, {**GOOD, name: value})

    assert "WF303" == caught.value.code


def test_the_help_for_a_list_of_numbers_shows_numbers() -> None:
    text = PROGRAM.replace("{ type: array }", "{ type: array, items: { type: integer } }")

    with pytest.raises(WorkflowError) as caught:
        resolve_inputs(require_program(load_text(text)), {**GOOD, "l": "1, 2"})

    assert caught.value.help == "write it as JSON: -i l='[1, 2]'"


def test_values_of_json_are_taken_as_they_are() -> None:
    assert GOOD == resolve_inputs(require_program(load_text(PROGRAM)), GOOD)


@ff.flow
async def sample(run: ff.Run, q: str, tags: list[str] | None = None) -> str:
    del run
    return f"{q} {tags}"


@pytest.mark.parametrize(
    ("given", "name"), [({"q": "\ud800"}, "q"), ({"q": "a", "tags": ["\udcff"]}, "tags")]
)
def test_a_flow_refuses_what_is_no_text(given: dict[str, object], name: str) -> None:
    with pytest.raises(WorkflowError, match=f"input '{name}' .* is no character") as caught:
        sample.resolve_inputs(given)

    assert "WF303" == caught.value.code


def told_by(given: dict[str, Any]) -> list[str]:
    with pytest.raises(WrongInputsError) as told:
        resolve_inputs(require_program(load_text(PROGRAM)), given)
    assert told.value.code == told.value.errors[0].code
    assert all(str(error) in str(told.value) for error in told.value.errors)
    return [f"{error.code} {error.message.partition(',')[0]}" for error in told.value.errors]


def test_all_that_is_wrong_with_inputs_is_told_together() -> None:
    assert told_by({"n": "many", "l": "hello", "x": 1}) == [
        "WF302 unknown input 'x'",
        "WF301 input 'q' (string) is missing",
        "WF303 input 'n' expects number",
        "WF303 input 'l' expects array",
    ]


def test_an_input_under_a_name_misspelt_is_not_missing_too() -> None:
    assert told_by({"topics": 1, "N": 1, "l": 5}) == [
        "WF302 unknown input 'topics'",
        "WF302 unknown input 'N'",
        "WF301 input 'q' (string) is missing",
        "WF303 input 'l' expects array",
    ]
