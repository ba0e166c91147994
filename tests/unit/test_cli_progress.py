"""The displays that only add lines, and how one of them is chosen."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from flowforge.cli import options
from flowforge.cli.progress import LogProgress, NoProgress, PlainProgress, choose_progress
from flowforge.runtime.events import Event, Fact, StepAsked, StepFailed, StepStarted, StepText


def told(progress: PlainProgress, *facts: Fact) -> None:
    for seq, fact in enumerate(facts):
        progress.show(Event(seq, 0.0, fact))


def test_a_step_that_goes_on_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = PlainProgress(lambda: now[0])
    told(progress, StepStarted("a", "gen"), StepText("a", "x", 12))
    for now[0] in (0.1, 4.9, 5.0, 5.1, 9.9, 10.0):
        progress.refresh()

    line = "a: writing, 12 tokens so far\n"
    assert f"a: started\n{line}{line}" == capsys.readouterr().err


def test_lines_hold_nothing_that_controls_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    told(PlainProgress(), StepAsked("a", "well\x1b]0;x\x07\r\n?"))

    assert "a: asks, well␛]0;x␇ ?\n" == capsys.readouterr().err


def test_a_log_has_times_and_levels(capsys: pytest.CaptureFixture[str]) -> None:
    told(LogProgress(), StepStarted("a", "gen"), StepFailed("a", "WF1", "no"))

    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d"
    expected = rf"{moment} INFO a: started\n{moment} ERROR a: failed, no \[WF1\]\n"
    assert re.fullmatch(expected, capsys.readouterr().err)


def test_where_lines_cannot_be_redrawn_a_live_display_is_plain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert type(choose_progress("auto")) is PlainProgress
    assert "" == capsys.readouterr().err
    assert type(choose_progress("live")) is PlainProgress
    assert "no terminal" in capsys.readouterr().err


def test_json_and_none_show_nothing_beside_the_result() -> None:
    assert [NoProgress, NoProgress] == [
        type(choose_progress("json")),
        type(choose_progress("none")),
    ]


@click.command
@options.display
def shown(*, display: options.Display, as_json: bool, is_quiet: bool) -> None:
    click.echo(f"{display} {as_json} {is_quiet}")


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], None, "auto False False"),
        (["--display", "log"], None, "log False False"),
        (["--display", "json"], None, "json True False"),
        (["--json"], None, "json True False"),
        (["-q"], None, "none False True"),
        (["--display", "none"], None, "none False True"),
        (["--tui"], None, "tui False False"),
        ([], "plain", "plain False False"),
        (["--json"], "plain", "json True False"),
        (["--display", "log"], "plain", "log False False"),
    ],
)
def test_short_forms_and_the_environment_choose_a_display(
    arguments: list[str], environment: str | None, expected: str
) -> None:
    result = CliRunner().invoke(shown, arguments, env={"FLOWFORGE_DISPLAY": environment})

    assert (expected + "\n", 0) == (result.output, result.exit_code)


def test_two_displays_at_once_are_a_usage_error() -> None:
    result = CliRunner().invoke(shown, ["--json", "--display", "plain"])

    assert 2 == result.exit_code
    assert "--json and --display plain exclude each other" in result.output
