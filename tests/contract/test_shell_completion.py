"""What TAB completes: by click's protocol, and in a real bash.

Tried by hand on 2026-12-01: in fish 3.6.0 commands, options, values, files and codes (`complete
-C`);
in zsh 5.9 that the script loads, registers and offers commands with their help, without its line
editor.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from flowforge.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE_STEP = """\
flowforge: 1
name: tides
steps:
  first: { user: hi, gen: }
  second: { from: first, user: more, gen: }
outputs: { text: "${ second }" }
"""


def completed(words: Sequence[str], begun: str) -> list[tuple[str, str]]:
    """Each completion of a last word with its type."""
    complete = BashComplete(app, {}, "flowforge", "_FLOWFORGE_COMPLETE")
    return [(one.value, one.type) for one in complete.get_completions([*words], begun)]


def values(words: Sequence[str], begun: str) -> list[str]:
    return [value for value, _ in completed(words, begun)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOWFORGE_JOURNAL", str(tmp_path / ".state" / "runs.db"))
    (tmp_path / "more").mkdir()
    for name in ("tides.yaml", "trip.py", "notes.txt", ".hidden.yaml", "more/moon.yml"):
        (tmp_path / name).write_text(ONE_STEP)
    return tmp_path


@pytest.fixture
def run_id(folder: Path) -> str:
    """A run of the journal."""
    answers = folder / "answers.json"
    answers.write_text('{"first": "a", "second": "b"}')
    words = ["run", "tides.yaml", "--backend", f"script:{answers}", "--display", "none"]
    assert 0 == CliRunner().invoke(app, words).exit_code
    return CliRunner().invoke(app, ["runs"]).stdout.split()[0]


def test_commands_and_options_are_completed() -> None:
    assert ["run", "runs", "rerun", "resume", "report"] == sorted(
        values([], "r"), key=["run", "runs", "rerun", "resume", "report"].index
    )
    assert ["--explain-cache"] == values(["run"], "--expl")
    assert ["markdown"] == values(["export", "-f"], "m")
    assert ["--wait-for-answers"] == values(["run"], "--wait")
    assert ["engine", "script:"] == values(["run", "--backend"], "")
    assert ["--backend"] == values(["map"], "--back")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "begun", "found"),
    [
        (["run"], "t", ["tides.yaml", "trip.py"]),
        (["check"], "t", ["tides.yaml"]),
        (["check"], "more/", ["more/moon.yml"]),
        (["check"], "more/x", []),
        (["check"], "nowhere/", []),
        (["plan"], ".h", [".hidden.yaml"]),
    ],
)
def test_workflow_files_are_completed(words: list[str], begun: str, found: list[str]) -> None:
    assert found == values(words, begun)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("begun", ["", "m", "mor"])
def test_where_a_folder_may_be_meant_the_shell_completes_files(begun: str) -> None:
    assert [(begun, "file")] == completed(["run"], begun)


def test_runs_and_their_steps_are_completed(run_id: str) -> None:
    assert [run_id] == values(["show"], run_id[:4])
    assert [run_id] == values(["diff", run_id], "")
    assert ["first", "second"] == values(["show", run_id], "")
    assert ["second"] == values(["rerun", run_id, "--from"], "s")


@pytest.mark.usefixtures("folder")
def test_what_cannot_be_read_completes_to_nothing() -> None:
    Path("broken.db").write_text("this is no journal")

    assert [] == values(["show"], "")
    assert [] == values(["show", "no-such-run"], "")
    assert [] == values(["show", "--journal", "broken.db"], "")
    assert [] == values(["show", "--journal", "nowhere.db"], "")


def test_codes_and_models_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWFORGE_HOME", str(tmp_path))

    assert ["WF202"] == values(["explain"], "WF202")
    assert [] == values(["run", "x.yaml", "--model"], "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])

    assert 0 == done.exit_code
    assert f"_FLOWFORGE_COMPLETE={shell}_complete" in done.stdout


def test_a_shell_that_is_not_known_is_told() -> None:
    done = CliRunner().invoke(app, ["completion", "tcsh"])

    assert 2 == done.exit_code
    assert "'bash', 'zsh', 'fish'" in done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_real_bash_completes(folder: Path, run_id: str) -> None:
    command = str(Path(sys.executable).with_name("flowforge"))
    script = f"""
        eval "$({command} completion bash)"
        complete -p flowforge
        try() {{
            COMP_WORDS=({command} "$@"); COMP_CWORD=$#; COMPREPLY=()
            _flowforge_completion {command}
            printf '%s;' "${{COMPREPLY[@]}}"; echo
        }}
        try comp
        try check tid
        try show {run_id[:4]}
        try show {run_id} se
    """

    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert [
        "complete -o nosort -F _flowforge_completion flowforge",
        "completion;",
        "tides.yaml;",
        f"{run_id};",
        "second;",
    ] == done.stdout.splitlines(), done.stderr


def test_fish_is_told_to_keep_commas_of_help_lines() -> None:
    script = CliRunner().invoke(app, ["completion", "fish"]).stdout

    assert 'string split --max 1 ","' in script
    assert 'string split ","' not in script
