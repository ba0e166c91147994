"""Questions and seeds on the command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from click.testing import CliRunner, Result

from flowforge.cli.answers import TerminalAsker, chosen, read_answers
from flowforge.cli.app import app
from flowforge.cli.failures import report
from flowforge.cli.progress import NoProgress
from flowforge.errors import ToolError, WorkflowError
from flowforge.runtime.commands import StartQuestion

if TYPE_CHECKING:
    from collections.abc import Generator
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


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def at_a_terminal(typed: bytes, monkeypatch: pytest.MonkeyPatch) -> Generator[Terminal]:
    """What comes to stderr, with something typed; within a test, for pytest sets both itself."""
    read, write = os.pipe()
    os.write(write, typed)
    with os.fdopen(read) as stdin, os.fdopen(write, "wb"), monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", stdin)
        terminal = Terminal()
        patched.setattr(sys, "stderr", terminal)
        yield terminal


HOSTILE = StartQuestion("q", "go\x1b[2J on\x07?", ("yes", "n\x1b[31mo"), {"a": "\x9b2J"})


async def test_control_codes_in_a_question_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with at_a_terminal(b"1\n", monkeypatch) as terminal:
        assert "yes" == await TerminalAsker(NoProgress())(HOSTILE)

    assert "q: go␛[2J on␇?" in terminal.getvalue()
    assert not {"\x1b", "\x07", "\x9b"} & set(terminal.getvalue())


async def test_what_follows_a_question_that_is_cancelled_begins_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with at_a_terminal(b"", monkeypatch) as terminal:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(TerminalAsker(NoProgress()), HOSTILE)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()

    assert terminal.getvalue().endswith("> \n")


def test_control_codes_in_an_error_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with at_a_terminal(b"", monkeypatch) as terminal:
        report(ToolError("TL203", "the tool said '\x1b]0;x\x07'"))

    assert "the tool said '␛]0;x␇'" in terminal.getvalue()
