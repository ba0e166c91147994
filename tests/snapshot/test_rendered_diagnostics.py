"""Diagnostics as an author sees them."""

from __future__ import annotations

from flowforge.language.diagnostics import render_diagnostics
from flowforge.language.loader import load_text

WORKFLOW = """\
flowforge: 1
name: analyst
inputs:
  topic: string
steps:
  angles:
    user: About ${ inputs.topik }
    gen: { max_tokns: 3 }
  report:
    from: angels
    user: "宽 \t ${ angles | jion }"
    gen:
"""

EXPECTED = """\
error[WF203]: unknown input 'inputs.topik'
 --> workflow.yaml:7:27
  |
7 |     user: About ${ inputs.topik }
  |                           ^^^^^ help: did you mean 'topic'?

error[WF101]: 'max_tokns' is not a key of 'gen'
 --> workflow.yaml:8:12
  |
8 |     gen: { max_tokns: 3 }
  |            ^^^^^^^^^ help: did you mean 'max_tokens'?

error[WF104]: step 'report' continues 'angels', which is not in scope
  --> workflow.yaml:10:11
   |
10 |     from: angels
   |           ^^^^^^ help: did you mean 'angles'?

error[WF204]: unknown filter 'jion'
  --> workflow.yaml:11:28
   |
11 |     user: "宽      ${ angles | jion }"
   |                                ^^^^ help: did you mean 'join'?

4 errors"""


def test_all_problems_are_shown_with_carets_under_what_is_wrong() -> None:
    result = load_text(WORKFLOW, "workflow.yaml")

    assert render_diagnostics(result.diagnostics) == EXPECTED


def test_what_is_said_of_several_places_word_by_word_is_said_once() -> None:
    steps = "".join(f"  s{idx}: {{ user: '${{ topik }}', gen: }}\n" for idx in range(3))
    text = f"flowforge: 1\nname: n\nsteps:\n{steps}"

    shown = render_diagnostics(load_text(text, "w.yaml").diagnostics)

    assert shown.count("error[WF202]") == 1
    assert " = note: the same at w.yaml:5:19, w.yaml:6:19\n" in shown
    assert shown.endswith("\n\n3 errors")


def test_of_many_places_the_first_are_named() -> None:
    steps = "".join(f"  s{idx}: {{ user: '${{ topik }}', gen: }}\n" for idx in range(20))
    text = f"flowforge: 1\nname: n\nsteps:\n{steps}"

    assert "w.yaml:16:20 and 7 more\n" in render_diagnostics(load_text(text, "w.yaml").diagnostics)


def test_of_many_problems_of_one_code_the_first_are_shown_and_the_others_counted() -> None:
    outputs = "  a: 2\n" * 1_500 + "  b: ${ nobody }\n"
    text = f"flowforge: 1\nname: n\nsteps: {{ s: {{ set: 1 }} }}\noutputs:\n  a: 1\n{outputs}"

    shown = render_diagnostics(load_text(text, "w.yaml").diagnostics)

    assert 12 == shown.count("error[WF008]")
    assert 1 == shown.count("error[WF202]")
    assert " = note: and 1,488 more of WF008\n\nerror[WF202]" in shown
    assert shown.endswith("\n\n1,501 errors")


def test_a_dozen_problems_of_one_code_are_all_shown() -> None:
    text = "flowforge: 1\nname: n\nsteps: { s: { set: 1 } }\noutputs:\n  a: 1\n" + "  a: 2\n" * 12

    shown = render_diagnostics(load_text(text, "w.yaml").diagnostics)

    assert 12 == shown.count("error[WF008]")
    assert "more of" not in shown


def test_colour_is_there_only_when_asked_for() -> None:
    diagnostics = load_text(WORKFLOW, "workflow.yaml").diagnostics

    assert "\033[" in render_diagnostics(diagnostics, colour=True)
    assert "\033[" not in render_diagnostics(diagnostics)


def test_diagnostics_have_fields_for_machines() -> None:
    first = load_text(WORKFLOW, "workflow.yaml").diagnostics[0].as_json()

    assert first == {
        "code": "WF203",
        "severity": "error",
        "message": "unknown input 'inputs.topik'",
        "file": "workflow.yaml",
        "line": 7,
        "column": 27,
        "end_line": 7,
        "end_column": 32,
        "help": "did you mean 'topic'?",
        "notes": [],
    }
