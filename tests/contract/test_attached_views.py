"""A viewer on a run of another process: its texts as they come, its end, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from flowforge.control.detaching import Detached, begin_detached
from flowforge.control.orders import socket_path
from flowforge.errors import EngineError
from flowforge.journal.journal import Journal
from flowforge.view.attached import AttachedRun
from flowforge.view.run_view import RunView

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from flowforge.view.sources import Link

WAIT_S = 60
WORKFLOW = """\
flowforge: 1
name: gated
steps:
  draft: { user: write, gen: { max_tokens: 9 } }
  gate: { ask: "Publish ${ draft }?", choices: [yes please, "no"] }
  last: { user: "${ gate }", gen: { max_tokens: 9 } }
outputs: { last: "${ last }" }
"""


class Watched:
    """A run in a process of its own, and a view of it."""

    def __init__(self, folder: Path) -> None:
        workflow, script = folder / "gated.yaml", folder / "script.json"
        workflow.write_text(WORKFLOW)
        script.write_text(json.dumps({"draft": "a text", "last": "the end"}))
        path = folder / "runs.db"
        command = [sys.executable, "-m", "flowforge", "run", str(workflow), "--wait-for-answers"]
        with (folder / "said").open("wb") as said:
            self.process = subprocess.Popen(
                [*command, "--backend", f"script:{script}", "--journal", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        self.journal = Journal(path)
        self.view = RunView()
        self.link: Link = "live"
        self.elapsed_s = 0.0
        self._await(lambda: bool(self.journal.runs()) or self.process.poll() is not None)
        assert self.journal.runs(), (folder / "said").read_text()
        self.run = AttachedRun(self.journal, self.journal.runs()[0].run_id)

    def until(self, is_there: Callable[[], bool]) -> None:
        """Take events in until something is seen."""
        self._await(lambda: self._look() or is_there())

    def _look(self) -> bool:
        batch = self.run.poll(0.05)
        self.view = RunView() if batch.is_new else self.view
        self.link = batch.link
        if batch.elapsed_s is not None:
            self.elapsed_s = batch.elapsed_s
        for event in batch.events:
            self.view.take(event)
        return False

    def _await(self, is_there: Callable[[], bool]) -> None:
        until = time.monotonic() + WAIT_S
        while not is_there():
            assert time.monotonic() < until, f"{self.link} {self.view.picture}"
            time.sleep(0.02)

    def close(self) -> None:
        self.run.close()
        self.journal.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def watched(tmp_path: Path) -> Generator[Watched]:
    one = Watched(tmp_path)
    yield one
    one.close()


def test_texts_come_as_they_are_written_and_an_answer_goes_back(watched: Watched) -> None:
    watched.until(lambda: bool(watched.view.questions) and bool(watched.run.actions))
    assert "a text" == watched.view.texts["draft"].kept

    with pytest.raises(EngineError, match="expected one of 'yes please', 'no'"):
        watched.run.order("answer", path="gate", text="perhaps")
    watched.run.order("answer", path="gate", text="no")
    watched.until(lambda: watched.view.is_over)

    assert {"last": "the end"} == watched.view.picture.outputs
    assert watched.view.texts["last"].kept == "the end"
    assert 0 == watched.process.wait(WAIT_S)
    watched.until(lambda: watched.link == "recorded")


def test_a_run_that_is_paused_begins_nothing_until_it_goes_on(watched: Watched) -> None:
    watched.until(lambda: bool(watched.view.questions) and bool(watched.run.actions))
    watched.run.order("pause")
    watched.run.order("answer", path="gate", text="no")
    watched.until(lambda: "last" in watched.view.picture.steps and watched.run.is_paused)
    for _ in range(10):
        watched.until(lambda: True)
    assert not watched.view.is_over

    watched.run.order("go on")
    watched.until(lambda: watched.view.is_over)


def test_a_run_is_cancelled_from_a_view(watched: Watched) -> None:
    watched.until(lambda: bool(watched.view.questions) and bool(watched.run.actions))
    watched.run.order("cancel")
    watched.until(lambda: watched.view.is_over)

    assert "cancelled" == watched.view.picture.status


def test_a_step_is_cancelled_alone_from_a_view(watched: Watched) -> None:
    watched.until(lambda: bool(watched.view.questions) and bool(watched.run.actions))
    with pytest.raises(EngineError, match="nothing that runs is called 'gaet'"):
        watched.run.order("cancel step", path="gaet")
    watched.run.order("cancel step", path="gate")
    watched.until(lambda: watched.view.is_over)

    assert ["gate"] == [failure.path for failure in watched.view.picture.failures]
    assert "failed" == watched.view.picture.status


def test_a_run_that_is_resumed_is_followed_again(watched: Watched) -> None:
    watched.until(lambda: bool(watched.view.questions) and bool(watched.run.actions))
    watched.run.order("cancel step", path="gate")
    watched.until(lambda: watched.view.is_over)
    watched.process.wait(WAIT_S)

    place = ["--journal", str(watched.journal.path), "--wait-for-answers"]
    begun = begin_detached(watched.journal.path, ["resume", watched.run.run_id, *place])
    assert isinstance(begun, Detached)
    watched.until(lambda: bool(watched.view.questions) and bool(watched.run.actions))
    # Its last event is as old as what it waits for, and its own time has gone on.
    watched.until(lambda: watched.elapsed_s > watched.view.time_s + 1)
    watched.run.order("answer", path="gate", text="no")
    watched.until(lambda: watched.view.picture.status == "done")


def test_limits_are_changed_from_a_view(watched: Watched) -> None:
    watched.until(lambda: bool(watched.view.questions) and bool(watched.run.actions))
    told = watched.run.limits({"max_tokens": 1_000, "concurrency": 1})
    assert (1_000, 1, None) == (
        told.limits["max_tokens"],
        told.limits["concurrency"],
        told.limits["max_time_s"],
    )
    assert told.used["max_time_s"] > 0
    with pytest.raises(EngineError, match="concurrency"):
        watched.run.limits({"concurrency": 0})


def test_what_is_left_of_a_killed_run_is_told_from_its_journal(watched: Watched) -> None:
    watched.until(lambda: bool(watched.view.questions) and bool(watched.run.actions))
    os.kill(watched.process.pid, signal.SIGKILL)
    watched.process.wait()
    watched.until(lambda: watched.link == "cut" and bool(watched.view.questions))

    assert "done" == watched.view.picture.steps["draft"].status
    assert frozenset() == watched.run.actions
    with pytest.raises(EngineError, match="cannot be reached"):
        watched.run.order("cancel")


def test_several_views_see_the_same_and_one_that_leaves_disturbs_nobody(watched: Watched) -> None:
    other = AttachedRun(watched.journal, watched.run.run_id)
    other.poll(0.05)
    watched.until(lambda: bool(watched.view.questions) and bool(watched.run.actions))
    other.close()
    watched.run.order("answer", path="gate", text="no")
    watched.until(lambda: watched.view.is_over)

    assert "done" == watched.view.picture.status


def test_a_run_whose_socket_is_gone_is_watched_by_its_journal(watched: Watched) -> None:
    watched.until(lambda: bool(watched.view.questions) and bool(watched.run.actions))
    watched.run.close()
    path = socket_path(watched.journal.path, watched.run.run_id)
    path.unlink()
    watched.view = RunView()
    watched.run = AttachedRun(watched.journal, watched.run.run_id)
    watched.until(lambda: bool(watched.view.questions))

    assert "live" == watched.link
    assert frozenset() == watched.run.actions
    with pytest.raises(EngineError, match="cannot be reached"):
        watched.run.order("pause")


def test_a_run_that_tells_what_is_no_event_is_told_plainly(watched: Watched) -> None:
    path = socket_path(watched.journal.path, watched.run.run_id)
    watched.until(lambda: bool(watched.view.questions))
    watched.run.close()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        run = AttachedRun(watched.journal, watched.run.run_id)
        run.poll(0.05)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b'{"seq": 0, "time_s": 0, "event": "run_started", "version": 99}\n')
            with pytest.raises(EngineError, match="is of a newer FlowForge, this one reads 1"):
                while True:
                    run.poll(0.05)
        run.close()
