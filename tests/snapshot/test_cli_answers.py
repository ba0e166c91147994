"""Questions and seeds on the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from flowforge.cli.answers import chosen, read_answers
from flowforge.cli.app import app
from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from pathlib import Path

APPROVAL = """\
flowforge: 1
name: approval
steps:
  text:
    user: Write.
    gen:
  gate:
    ask: Publish this?
    show: ${ text }
    choices: [approve, reject]
outputs:
  gate: ${ gate }
"""


def run(tmp_path: Path, *options: str, workflow: str = APPROVAL) -> Result:
    file, script = tmp_path / "w.yaml", tmp_path / "script.json"
    file.write_text(workflow, encoding="utf-8")
    script.write_text(json.dumps({"*": "a text"}), encoding="utf-8")
    return CliRunner().invoke(app, ["run", str(file), "--backend", f"script:{script}", *options])


def test_a_question_that_nobody_can_answer_is_refused_before_anything_runs(tmp_path: Path) -> None:
    result = run(tmp_path)

    assert 2 == result.exit_code
    assert "error[WF530]: step 'gate' asks a person" in result.stderr
    assert "started" not in result.stderr


def test_answers_come_from_a_yaml_file_by_step_path(tmp_path: Path) -> None:
    answers = tmp_path / "answers.yaml"
    answers.write_text("gate: approve\n", encoding="utf-8")

    result = run(tmp_path, "--answers", str(answers))

    assert (0, "approve\n") == (result.exit_code, result.stdout)
    assert "gate: asks, Publish this?" in result.stderr


def test_an_answer_that_is_no_choice_fails_the_run_and_names_the_step(tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    answers.write_text('{"*": "perhaps"}', encoding="utf-8")

    result = run(tmp_path, "--answers", str(answers))

    assert 1 == result.exit_code
    assert "error[WF531]: gate: 'gate' was answered 'perhaps'" in result.stderr


def test_a_question_with_an_answer_for_nobody_needs_no_person(tmp_path: Path) -> None:
    timed = APPROVAL.replace("outputs:", "    timeout: 2h\n    on_timeout: reject\noutputs:")
    answers = tmp_path / "answers.json"
    answers.write_text('{"gate": "reject"}', encoding="utf-8")

    assert "reject\n" == run(tmp_path, "--answers", str(answers), workflow=timed).stdout


@pytest.mark.parametrize("text", ["- a\n", "gate: 5\n", "gate: [a\n"])
def test_an_answers_file_of_the_wrong_shape_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "answers.yaml"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(WorkflowError) as caught:
        read_answers(file)

    assert "WF526" == caught.value.code


def test_the_seed_is_told_in_the_first_event_and_drawn_where_none_is_given(
    tmp_path: Path,
) -> None:
    plain = "flowforge: 1\nname: w\nsteps:\n  a:\n    user: Hi.\n    gen:\noutputs:\n  a: ${ a }\n"

    def seed(*options: str) -> int:
        result = run(tmp_path, "--json", *options, workflow=plain)
        told: int = json.loads(result.stdout.splitlines()[0])["seed"]
        return told

    assert 7 == seed("--seed", "7")
    assert seed() != seed()


@pytest.mark.parametrize(
    ("line", "expected"), [("yes", "yes"), ("2", "no"), ("3", None), ("maybe", None), ("", None)]
)
def test_a_choice_is_made_by_text_or_number(line: str, expected: str | None) -> None:
    assert expected == chosen(line, ("yes", "no"))


def test_without_choices_any_line_is_an_answer() -> None:
    assert "anything" == chosen("anything", ())
