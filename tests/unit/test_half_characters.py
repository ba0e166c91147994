"""Characters that are escaped in two halves, as JSON writes what lies beyond U+FFFF."""

from __future__ import annotations

import json

from flowforge.language.loader import load_text, require_program
from flowforge.language.program import Set

TEACUP = "\N{TEACUP WITHOUT HANDLE}"


def test_a_workflow_written_by_a_json_library_keeps_its_characters() -> None:
    workflow = {
        "flowforge": 1,
        "name": "t",
        "steps": {"a": {"set": f"tea {TEACUP}"}},
        "outputs": {"a": "${ a }"},
    }

    program = require_program(load_text(json.dumps(workflow), "t.yaml"))

    verb = program.steps["a"].verb
    assert isinstance(verb, Set)
    assert verb.value.evaluate({}) == f"tea {TEACUP}"


def test_half_a_character_is_refused_where_it_stands() -> None:
    text = 'flowforge: 1\nname: t\nsteps: { a: { set: "x \\ud83c" } }\noutputs: { a: "${ a }" }\n'

    (problem,) = load_text(text, "t.yaml").diagnostics

    assert problem.code == "WF002"
    assert "U+D83C" in problem.message
    assert text[problem.span.start : problem.span.end] == '"x \\ud83c"'
