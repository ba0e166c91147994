"""The viewer on a terminal: how it leaves it, what it tells of runs that die, slow terminals."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from terminals import LEFT, Terminal

from flowforge.journal.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

WAIT_S = 30
WORKFLOW = """\
flowforge: 1
name: gated
steps:
  draft: { user: write, gen: { max_tokens: 9 } }
  gate: { ask: "Publish ${ draft }?", choices: [yes please, "no"] }
outputs: { last: "${ gate }" }
"""
BROKEN = """\
from flowforge.tui.app import ViewerApp
from flowforge.tui.opened_run import OpenedRun

class Broken:
    def poll(self, budget_s):
        raise RuntimeError("a defect")
    def close(self):
        pass

ViewerApp(run=OpenedRun("broken", Broken())).run()
"""
PARENT = """\
import subprocess, sys
viewer = subprocess.Popen([sys.executable, *sys.argv[1:]])
viewer.wait()
"""
SHELL = """\
import subprocess, sys, time
parent = subprocess.Popen([sys.executable, *sys.argv[1:]])
print("parent", parent.pid, "end", flush=True)
parent.wait()
time.sleep(60)
"""


@contextmanager
def terminal(*arguments: str, size: tuple[int, int] = (100, 30)) -> Generator[Terminal]:
    one = Terminal(arguments, size)
    try:
        yield one
    finally:
        one.close()


def line(seq: int, **told: object) -> str:
    return json.dumps({"seq": seq, "time_s": seq / 100, **told}) + "\n"


def started(**told: object) -> str:
    begun = line(0, event="run_started", workflow="talk", inputs={}, seed=1, **told)
    return begun + line(1, event="step_started", path="draft", verb="gen")


@pytest.fixture
def events(tmp_path: Path) -> Path:
    file = tmp_path / "events.jsonl"
    file.write_text(started())
    return file


def until(is_there: Callable[[], bool]) -> None:
    last_s = time.monotonic() + WAIT_S
    while not is_there():
        assert time.monotonic() < last_s
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_viewer_with_the_terminal_as_it_was(
    events: Path, number: signal.Signals
) -> None:
    with terminal("-m", "flowforge.tui", "--events", str(events)) as viewer:
        viewer.read_until(b"draft")
        viewer.signal(number)
        drawn, code = viewer.end()

    assert 143 == code
    assert all(sequence in drawn for sequence in LEFT)


def test_a_signal_to_the_command_ends_its_viewer_too(events: Path) -> None:
    with terminal("-m", "flowforge", "tui", "--events", str(events)) as command:
        command.read_until(b"draft")
        command.signal(signal.SIGTERM)
        drawn, code = command.end()

    assert 143 == code
    assert all(sequence in drawn for sequence in LEFT)


def test_a_viewer_whose_command_was_killed_ends_and_leaves_the_terminal_as_it_was(
    events: Path,
) -> None:
    arguments = ("-m", "flowforge.tui", "--events", str(events))
    with terminal("-c", SHELL, "-c", PARENT, *arguments) as shell:
        shell.read_until(b" end")
        parent = int(shell.drawn.split()[1])
        shell.read_until(b"draft")
        os.kill(parent, signal.SIGKILL)
        for last in (*LEFT, b"the process that began the viewer has ended"):
            # It may have come with what was waited for before.
            assert last in shell.drawn or shell.read_until(last)


def test_a_defect_of_the_viewer_leaves_the_terminal_as_it_was() -> None:
    with terminal("-c", BROKEN) as viewer:
        drawn, _ = viewer.end()

    assert all(sequence in drawn for sequence in LEFT)
    assert b"a defect" in drawn.rpartition(LEFT[0])[2]


def test_a_journal_of_a_newer_version_is_told_plainly(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    Journal(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with terminal("-m", "flowforge", "tui", "--journal", str(path)) as viewer:
        drawn, code = viewer.end()

    assert 4 == code
    assert b"EN705" in drawn and b"has version 99" in drawn
    assert b"Traceback" not in drawn


def test_events_of_a_newer_version_are_told_on_the_screen(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(started(version=99))
    with terminal("-m", "flowforge.tui", "--events", str(file)) as viewer:
        viewer.read_until(b"WF711")
        viewer.press("q")
        drawn, code = viewer.end()

    assert 0 == code
    assert b"Traceback" not in drawn


def test_a_run_that_is_killed_is_told_and_the_viewer_stays(tmp_path: Path) -> None:
    workflow, script, path = (tmp_path / name for name in ("gated.yaml", "script.json", "runs.db"))
    workflow.write_text(WORKFLOW)
    script.write_text(json.dumps({"draft": "a text"}))
    place = ["--journal", str(path)]
    command = ["run", str(workflow), "--wait-for-answers", "--backend", f"script:{script}", *place]
    run = subprocess.Popen(
        [sys.executable, "-m", "flowforge", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: path.exists() and bool(_run_ids(path)))
        (run_id,) = _run_ids(path)
        with terminal("-m", "flowforge.tui", run_id, *place) as viewer:
            viewer.read_until(b"to answer")
            run.kill()
            run.wait()
            viewer.read_until(b"interrupted")
            viewer.press("q")
            drawn, code = viewer.end()
    finally:
        run.kill()
        run.wait()

    assert 0 == code
    assert b"Traceback" not in drawn


def _run_ids(path: Path) -> list[str]:
    with Journal(path) as journal:
        return [run.run_id for run in journal.runs()]


def test_keys_are_answered_while_the_terminal_takes_nothing(
    events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arguments = ("-m", "flowforge.tui", "--events", str(events))
    with terminal(*arguments, size=(300, 80)) as viewer:
        viewer.read_until(b"draft")
        with events.open("a", encoding="utf-8") as file:
            for seq in range(2, 400):
                text = f"word {seq} of a text that fills the screen again and again\n" * 9
                file.write(line(seq, event="step_text", path="draft", text=text, num_tokens=9))
                file.flush()
                time.sleep(0.005)
        viewer.press("x")
        until(lambda: bool([*tmp_path.glob("**/*-screen*.svg")]))
        before = viewer.num_drawn
        viewer.press("q")
        _, code = viewer.end()

    assert 0 == code
    # What a pseudo-terminal keeps, and the one frame for which it had no room.
    assert viewer.num_drawn - before < 200_000


def test_the_last_of_many_sizes_is_drawn(events: Path) -> None:
    with terminal("-m", "flowforge.tui", "--events", str(events), size=(160, 48)) as viewer:
        viewer.read_until(b"draft")
        for idx in range(60):
            viewer.resize((40 + idx * 2, 8 + idx % 40))
            viewer.read(0.005)
        viewer.resize((72, 50))
        # No other one has as many rows.
        viewer.read_until(b"\x1b[50;1H")
        viewer.press("q")
        _, code = viewer.end()

    assert 0 == code
