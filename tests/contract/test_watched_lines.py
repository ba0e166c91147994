"""`run --json` and `watch` through pipes: records and lines come while the run goes on."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

WAIT_S = 30
WORKFLOW = """\
flowforge: 1
name: gated
steps:
  draft: { user: write, gen: { max_tokens: 9 } }
  gate: { ask: "Publish ${ draft }?", choices: [yes please, "no"] }
outputs: { said: "${ gate }" }
"""


class Command:
    """A `flowforge` command whose output is read line by line."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flowforge", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.out: IO[str] = self.process.stdout
        self.err: IO[str] = self.process.stderr

    def record(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.out.readline())
        return told

    def record_of(self, event: str) -> dict[str, Any]:
        """The next record of an event; a command that ends before it fails the test."""
        while (record := self.record())["event"] != event:
            pass
        return record

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.out.close()
        self.err.close()


@contextmanager
def command(*arguments: str) -> Generator[Command]:
    one = Command(*arguments)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def gated(tmp_path: Path) -> Generator[Command]:
    """A run that waits for an answer, told in JSON."""
    workflow, script = tmp_path / "gated.yaml", tmp_path / "script.json"
    workflow.write_text(WORKFLOW)
    script.write_text(json.dumps({"draft": "a text"}))
    arguments = ["run", str(workflow), "--json", "--wait-for-answers"]
    place = ["--backend", f"script:{script}", "--journal", str(tmp_path / "runs.db")]
    with command(*arguments, *place) as run:
        yield run


def test_the_first_record_says_where_the_run_is_and_the_last_how_it_ended(
    gated: Command, tmp_path: Path
) -> None:
    first = gated.record()
    assert "run_started" == first["event"]
    assert gated.process.pid == first["pid"]
    assert str(tmp_path / "runs.db") == first["journal"]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(first["socket"])
    gated.record_of("step_asked")

    place = ["--journal", str(tmp_path / "runs.db")]
    with command("watch", first["run_id"], "--json", *place) as watch:
        assert first == watch.record()
        assert "a text" == watch.record_of("step_text")["text"]
        watch.record_of("step_asked")
        subprocess.run(
            [sys.executable, "-m", "flowforge", "answer", first["run_id"], "gate", "no", *place],
            check=True,
            capture_output=True,
            timeout=WAIT_S,
        )
        for told in (gated, watch):
            last = told.record_of("run_finished")
            assert ("done", {"said": "no"}) == (last["status"], last["outputs"])
            assert "" == told.out.readline()
            assert 0 == told.process.wait(WAIT_S)


def test_lines_come_as_the_run_goes_on_and_its_death_is_told(
    gated: Command, tmp_path: Path
) -> None:
    run_id = gated.record()["run_id"]
    gated.record_of("step_asked")
    place = ["--journal", str(tmp_path / "runs.db")]
    with (
        command("watch", run_id, "--display", "plain", *place) as lines,
        command("watch", run_id, "--display", "json", *place) as records,
    ):
        while not (line := lines.err.readline()).startswith("gate: asks"):
            assert line, "it ended before the question"
        records.record_of("step_asked")
        gated.process.kill()
        gated.process.wait()
        rest = lines.err.read()
        last = records.record_of("run_interrupted")
        codes = [one.process.wait(WAIT_S) for one in (lines, records)]

    assert "the run was cut" in rest and "Traceback" not in rest
    assert "interrupted" == last["status"]
    assert [1, 1] == codes
