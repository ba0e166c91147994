"""Commands whose stdin, stdout or stderr is closed, or on a disk that is full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from gone_reader import run_for_a_reader_that_left

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = """\
flowforge: 1
name: draft
steps:
  draft: { user: write, gen: { max_tokens: 9 } }
outputs: { draft: "${ draft }" }
"""

needs_full_device = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="no device that is always full"
)


@pytest.fixture
def run_command(tmp_path: Path) -> str:
    """A run by given answers, in the words of a shell; its journal is `runs.db` of tmp_path."""
    (tmp_path / "draft.yaml").write_text(WORKFLOW)
    (tmp_path / "answers.json").write_text(json.dumps({"draft": "a night train"}))
    return "run draft.yaml --backend script:answers.json --seed 1 --journal runs.db"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_result_that_an_encoding_cannot_hold_comes_escaped(
    tmp_path: Path, run_command: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answers.json").write_text(json.dumps({"draft": "night 日本"}))
    monkeypatch.setenv("PYTHONIOENCODING", encoding)

    done = shell(tmp_path, f"{run_command} -q")

    assert (0, "night \\u65e5\\u672c\n", "") == (done.returncode, done.stdout, done.stderr)


def test_a_run_that_cannot_be_written_down_is_told_once(tmp_path: Path, run_command: str) -> None:
    shell(tmp_path, run_command)
    journal = tmp_path / "runs.db"
    page = 4096
    num_pages = journal.stat().st_size // page
    with journal.open("r+b") as file:
        file.seek(3 * page)
        file.write(b"\xff" * (num_pages - 3) * page)

    done = shell(tmp_path, f"{run_command} -q")

    assert 4 == done.returncode
    assert "is damaged or no journal" in done.stderr
    assert "run, run" not in done.stderr


def shell(tmp_path: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line of `flowforge` as a shell does, with its redirections."""
    return subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m flowforge {command}'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_one_on_the_null_device(
    tmp_path: Path, run_command: str, closed: str
) -> None:
    done = shell(tmp_path, f"{run_command} {closed}")

    assert (0, False) == (done.returncode, "IN001" in done.stderr)
    assert ["done"] == statuses(tmp_path)


def test_a_list_for_a_closed_stdout_ends_well(tmp_path: Path, run_command: str) -> None:
    shell(tmp_path, run_command)

    assert 0 == shell(tmp_path, "runs --journal runs.db >&-").returncode


@needs_full_device
@pytest.mark.parametrize("command", ["--help", "--version", "runs --help", "grammar list --help"])
def test_help_for_a_full_disk_is_told_without_a_traceback(tmp_path: Path, command: str) -> None:
    done = shell(tmp_path, f"{command} >/dev/full")

    assert 2 == done.returncode
    assert done.stderr.startswith("error[WF539]: what was to be written does not fit on the disk")


@needs_full_device
def test_progress_for_a_full_disk_ends_with_a_documented_code(
    tmp_path: Path, run_command: str
) -> None:
    done = shell(tmp_path, f"{run_command} 2>/dev/full")

    assert 2 == done.returncode


def test_help_for_a_reader_that_left_has_the_code_of_broken_pipes() -> None:
    assert (141, "") == run_for_a_reader_that_left("--help")


def statuses(tmp_path: Path) -> list[str]:
    listed = shell(tmp_path, "runs --journal runs.db --json")
    return [json.loads(line)["status"] for line in listed.stdout.splitlines()]
