"""Slips in JSON Schemas of a workflow: what is said, where, and how to mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.language.loader import load_text
from flowforge.runtime.checking import load_file

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "flowforge: 1\nname: t\nsteps:\n  a: { user: hi, gen: { json: "


@pytest.mark.parametrize(
    ("schema", "place", "message", "help"),
    [
        ("{ type: [string, null] }", "null", "names null itself", '"null"'),
        ("{ type: [string, numbr] }", "numbr", "unknown type 'numbr'", "did you mean 'number'?"),
        ("{ type: 5 }", "5", "'type' is 5, expected a word", "types: string, "),
        ("{ items: [{ type: string }] }", "[{", "'items' is a list", "prefixItems"),
        ("{ properties: [x, y] }", "[x", "expected JSON Schemas by name", "name: {"),
        ("{ properties: { x: 3 } }", "3", "'x' is 3, expected a JSON Schema", "write x: {"),
        ("{ properties: { x: string } }", "string", "the text 'string'", "{ type: string }"),
        ("{ properties: { x: { required: true } } }", "true", "a boolean", "required: [a, b]"),
        ("{ properties: { x: { required: x } } }", "x }", "a string", "required: [a, b]"),
    ],
)
def test_a_slip_is_told_with_its_place_and_how_to_mend_it(
    schema: str, place: str, message: str, help: str
) -> None:
    text = f"{HEAD}{schema} }} }}\n"

    (problem,) = load_text(text).diagnostics

    assert "WF119" == problem.code
    assert message in problem.message
    assert help in (problem.help or "")
    assert text[problem.span.start :].startswith(place)


def test_a_slip_hides_no_other_problem_of_the_schema(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    schema = "{ properties: { x: { type: strng }, y: { minItems: many } } }"
    file.write_text(f"{HEAD}{schema} }} }}\n", encoding="utf-8")

    told = [one.message.partition(" is ")[0] for one in load_file(file).diagnostics]

    assert ["unknown type 'strng'", "'minItems'"] == told
