"""Flows in files: found by `FILE.py:NAME`, and run by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import flowforge as ff
from flowforge.flows.loading import load_flow

if TYPE_CHECKING:
    from pathlib import Path

ONE = """
import flowforge as ff
from beside import GREETING


@ff.flow
async def greet(run: ff.Run, name: str, count: int = 1) -> str:
    async with run.chat(system=GREETING) as chat:
        chat.user("Greet {name}", name=name)
        return await chat.gen(name="greeting")
"""
TWO = (
    ONE
    + """

@ff.flow
async def fail(run: ff.Run) -> str:
    raise ff.Stopped("no reason")
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with flow files; `sys.path` is put back afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("GREETING = 'Be kind.'\n", encoding="utf-8")
    (tmp_path / "one.py").write_text(ONE, encoding="utf-8")
    (tmp_path / "two.py").write_text(TWO, encoding="utf-8")
    (tmp_path / "none.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    script = json.dumps({"greeting": "Hello, Ada"})
    (tmp_path / "script.json").write_text(script, encoding="utf-8")
    return tmp_path


def test_the_only_flow_of_a_file_needs_no_name(folder: Path) -> None:
    assert "greet" == load_flow(str(folder / "one.py")).name
    assert "greet" == load_flow(f"{folder / 'one.py'}:greet").name


@pytest.mark.parametrize(
    ("target", "message", "help"),
    [
        ("two.py", "several flows: greet, fail", "say which one"),
        ("two.py:gret", "no flow 'gret'", "did you mean 'greet'?"),
        ("none.py", "has no flow", "@ff.flow"),
        ("missing.py", "there is no file", "check the path"),
        ("broken.py", "cannot be imported: ModuleNotFoundError", "--traceback"),
    ],
)
def test_what_is_no_flow_is_refused(folder: Path, target: str, message: str, help: str) -> None:
    with pytest.raises(ff.WorkflowError, match=message) as caught:
        load_flow(str(folder / target))

    assert "WF614" == caught.value.code
    assert help in (caught.value.help or "")


def run_cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flowforge", "run", *arguments]
    return subprocess.run(
        [*command, "--backend", "script:script.json"],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_command_line_runs_a_flow(folder: Path) -> None:
    finished = run_cli(folder, "one.py", "-i", "name=Ada", "-i", "count=3")

    assert (0, "Hello, Ada\n") == (finished.returncode, finished.stdout)
    assert "greeting: done" in finished.stderr
    assert "prefilled" in finished.stderr


def test_the_events_of_a_flow_are_those_of_a_workflow_file(folder: Path) -> None:
    finished = run_cli(folder, "two.py:greet", "-i", "name=Ada", "--json", "--seed", "7")

    events = [json.loads(line) for line in finished.stdout.splitlines()]
    assert 0 == finished.returncode, finished.stderr
    assert {"name": "Ada", "count": 1} == events[0]["inputs"]
    assert 7 == events[0]["seed"]
    assert ["run_started", "step_started", "step_text", "step_text", "step_finished"] == [
        event["event"] for event in events[:5]
    ]
    assert {"result": "Hello, Ada"} == events[-1]["outputs"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["one.py"], 2, "input 'name' (str) is missing"),
        (["one.py", "-i", "name=Ada", "-i", "count=many"], 2, "input 'count' expects int"),
        (["one.py:greed"], 2, "did you mean 'greet'?"),
        (["two.py:fail"], 1, "no reason"),
    ],
)
def test_what_goes_wrong_has_a_message_and_an_exit_code(
    folder: Path, arguments: list[str], code: int, message: str
) -> None:
    finished = run_cli(folder, *arguments)

    assert code == finished.returncode
    assert message in finished.stderr
    assert "" == finished.stdout
