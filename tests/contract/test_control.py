"""Runs in the background: who goes on, who waits for whom, and orders to them."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import pytest

from flowforge.control.orders import private_folder, socket_path
from flowforge.errors import EngineError
from flowforge.journal.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORKFLOW = """\
flowforge: 1
name: gate
steps:
  offer:
    user: Make an offer.
    gen: {}
  gate:
    ask: "Pay for ${ offer }?"
    choices: ["yes", "no"]
outputs: { gate: "${ gate }" }
"""


@pytest.fixture(name="folder")
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLOWFORGE_JOURNAL", str(tmp_path / "runs.db"))
    (tmp_path / "gate.yaml").write_text(WORKFLOW, encoding="utf-8")
    (tmp_path / "script.json").write_text('{"offer": "a bicycle"}', encoding="utf-8")
    return tmp_path


def flowforge(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flowforge", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def begin(folder: Path) -> str:
    """A run in the background that waits for a person; its name."""
    started = flowforge(folder, "run", "gate.yaml", "--backend", "script:script.json", "--detach")
    assert 0 == started.returncode, started.stderr
    name = started.stdout.strip()
    until(lambda: '"gate"' in flowforge(folder, "ps", "--json").stdout)
    return name


def until(is_so: Callable[[], bool]) -> None:
    """Look again and again, as somebody at a terminal would."""
    end_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end_s, "it did not come to that in a minute"
        time.sleep(0.05)


def status(folder: Path, name: str) -> str:
    with Journal(folder / "runs.db") as journal:
        return journal.run(name).status


def test_a_detached_run_is_listed_asked_and_answered(folder: Path) -> None:
    name = begin(folder)
    (line,) = flowforge(folder, "ps", "--json").stdout.splitlines()
    (question,) = json.loads(line)["questions"]
    assert ("gate", "Pay for a bicycle?", ["yes", "no"]) == (
        question["path"],
        question["prompt"],
        question["choices"],
    )
    path = socket_path(folder / "runs.db", name)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)

    wrong = flowforge(folder, "answer", name, "gate", "maybe")
    assert (4, True) == (wrong.returncode, "error[EN708]" in wrong.stderr)
    nobody = flowforge(folder, "answer", name, "offer", "yes")
    assert "'offer' does not wait for an answer; 'gate' does" in nobody.stderr
    assert 0 == flowforge(folder, "approve", name, "gate").returncode

    until(lambda: status(folder, name) == "done")
    until(lambda: not path.exists())
    with Journal(folder / "runs.db") as journal:
        assert {"gate": "yes"} == journal.run(name).outcome
    assert "" == flowforge(folder, "ps").stdout
    assert 4 == flowforge(folder, "cancel", name).returncode


def test_a_detached_run_is_paused_limited_and_gone_on_with(folder: Path) -> None:
    name = begin(folder)

    assert 0 == flowforge(folder, "pause", name).returncode
    assert f"{name}  pid" in flowforge(folder, "ps").stdout
    (listed,) = flowforge(folder, "ps", "--json").stdout.splitlines()
    assert json.loads(listed)["is_paused"]
    shown = flowforge(folder, "limits", name, "--concurrency", "2", "--max-time", "2h")
    assert "writing now  0, at most 2\ntokens       2, no limit\n" in shown.stdout
    assert "at most 7,200 s" in shown.stdout
    assert f"{name} goes on\n" == flowforge(folder, "resume", name).stderr
    ended = flowforge(folder, "limits", name, "--max-tokens", "1")

    assert 0 == ended.returncode
    until(lambda: "cancelled" in flowforge(folder, "runs").stdout)
    refused = flowforge(folder, "limits", name)
    assert (4, "error[EN708]") == (refused.returncode, refused.stderr[:12])
    missed = flowforge(folder, "pause", f"{name[:-1]}{'a' if name[-1] != 'a' else 'b'}")
    assert (2, True) == (missed.returncode, f"did you mean {name!r}" in missed.stderr)


WAITING = """\
flowforge: 1
name: rows
inputs: { row: integer }
tools: { wait: { python: "waiting:wait", effect: read } }
steps:
  one: { call: wait, with: { row: "${ inputs.row }" } }
  two: { user: "${ one }", gen: {} }
outputs: { two: "${ two }" }
"""
WAIT = """\
import time
from pathlib import Path


def wait(row: int) -> str:
    Path(f"begun{row}").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    return "ready"
"""


def test_a_batch_takes_orders_as_one(folder: Path) -> None:
    (folder / "rows.yaml").write_text(WAITING, encoding="utf-8")
    (folder / "waiting.py").write_text(WAIT, encoding="utf-8")
    (folder / "rows.jsonl").write_text('{"row": 0}\n{"row": 1}\n{"row": 2}\n', encoding="utf-8")
    (folder / "script.json").write_text('{"*": "well done"}', encoding="utf-8")
    words = ("map", "rows.yaml", "rows.jsonl", "-o", "out.jsonl", "--jobs", "2")
    command = [sys.executable, "-m", "flowforge", *words, "--backend", "script:script.json"]

    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as batch:
        until(lambda: (folder / "begun1").exists())
        runs = [json.loads(line) for line in flowforge(folder, "ps", "--json").stdout.splitlines()]
        (name,) = {run["batch"] for run in runs}
        again = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        paused = flowforge(folder, "pause", runs[0]["run_id"])
        (folder / "go").touch()
        told = json.loads(flowforge(folder, "limits", name, "--json").stdout)
        cancelled = flowforge(folder, "cancel", name)
        _, said = batch.communicate()

    assert (4, True) == (again.returncode, "EN706" in again.stderr), "one process at a time"
    assert (0, 0) == (paused.returncode, cancelled.returncode)
    assert 0 == told["used"]["max_tokens"], "nothing is written while it is paused"
    assert 130 == batch.returncode
    assert "cancelled; the same command goes on with it" in said
    assert 0 == subprocess.run(command, cwd=folder, check=False).returncode
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [(row, "done") for row in range(3)] == [(one["row"], one["status"]) for one in rows]


def test_a_cancelled_run_can_be_gone_on_with(folder: Path) -> None:
    name = begin(folder)
    assert 0 == flowforge(folder, "cancel", name[:-2]).returncode
    until(lambda: status(folder, name) == "cancelled")
    (folder / "answers.json").write_text('{"gate": "no"}', encoding="utf-8")

    resumed = flowforge(folder, "resume", name, "--answers", "answers.json", "-q")
    assert (0, "no\n") == (resumed.returncode, resumed.stdout), resumed.stderr


def test_runs_go_on_and_run_again_in_the_background(folder: Path) -> None:
    name = begin(folder)
    assert 0 == flowforge(folder, "cancel", name, "gate").returncode
    until(lambda: status(folder, name) == "failed")

    resumed = flowforge(folder, "resume", name, "--detach")
    assert (0, name) == (resumed.returncode, resumed.stdout.strip()), resumed.stderr
    assert 0 == flowforge(folder, "approve", name, "gate").returncode
    until(lambda: status(folder, name) == "done")

    again = flowforge(folder, "rerun", name, "--from", "gate", "--detach").stdout.strip()
    until(lambda: '"gate"' in flowforge(folder, "ps", "--json").stdout)
    assert 0 == flowforge(folder, "answer", again, "gate", "no").returncode
    until(lambda: status(folder, again) == "done")


def test_what_a_killed_run_left_is_taken_away(folder: Path) -> None:
    name = begin(folder)
    pid = json.loads(flowforge(folder, "ps", "--json").stdout)["pid"]
    os.kill(pid, 9)
    until(lambda: flowforge(folder, "ps").stdout == "")
    path = socket_path(folder / "runs.db", name)
    assert path.exists()
    assert "cannot be reached" in flowforge(folder, "cancel", name).stderr
    (folder / "answers.json").write_text('{"gate": "yes"}', encoding="utf-8")

    resumed = flowforge(folder, "resume", name, "--answers", "answers.json", "-q")
    assert (0, "yes\n") == (resumed.returncode, resumed.stdout), resumed.stderr
    assert not path.exists()


def test_forgetting_a_run_takes_its_log_and_socket_away(folder: Path) -> None:
    name = begin(folder)
    (listed,) = flowforge(folder, "ps", "--json").stdout.splitlines()
    os.kill(json.loads(listed)["pid"], signal.SIGKILL)
    until(lambda: "interrupted" in flowforge(folder, "runs").stdout)
    # Where the journal's path is long the socket is in another folder.
    listens_at = socket_path(folder / "runs.db", name)
    left = {path.suffix for path in (folder / "runs.db.locks").iterdir()}
    assert {".log", ".lock"} <= left
    assert listens_at.exists()

    assert 0 == flowforge(folder, "runs", "prune", "--keep", "0").returncode

    assert [] == list((folder / "runs.db.locks").iterdir())
    assert not listens_at.exists()


@pytest.mark.parametrize("display", ["--quiet", "--json"])
def test_a_run_in_the_background_is_named_however_it_is_shown(folder: Path, display: str) -> None:
    (folder / "answers.json").write_text('{"gate": "yes"}', encoding="utf-8")
    options = ("--backend", "script:script.json", "--answers", "answers.json", display)

    begun = flowforge(folder, "run", "gate.yaml", *options, "--detach")

    assert 0 == begun.returncode, begun.stderr
    until(lambda: status(folder, begun.stdout.strip()) == "done")


def test_a_run_that_fails_to_begin_says_so(folder: Path) -> None:
    failed = flowforge(folder, "run", "none.yaml", "--backend", "script:script.json", "--detach")

    assert 3 == failed.returncode
    assert "WF001" in failed.stderr


def test_a_socket_whose_name_is_too_long_is_in_a_folder_of_ones_own(tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 30) / "runs.db"
    path = socket_path(deep, "r")

    assert len(os.fsencode(path)) < 108
    assert path != socket_path(deep, "s")
    assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    path.unlink()


@pytest.mark.parametrize("trap", ["link", "file", "open folder"])
def test_a_folder_that_somebody_else_may_have_laid_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / f"flowforge-{os.getuid()}"
    match trap:
        case "link":
            (tmp_path / "elsewhere").mkdir(mode=0o700)
            place.symlink_to(tmp_path / "elsewhere")
        case "file":
            place.touch(0o600)
        case _:
            place.mkdir()
            place.chmod(0o755)

    assert private_folder() is None
    with pytest.raises(EngineError, match=r"EN708.*open to others"):
        socket_path(tmp_path / ("long-" * 30) / "runs.db", "r")

    (place.rmdir if trap == "open folder" else place.unlink)()
    assert place == private_folder()
