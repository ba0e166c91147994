"""Flows whose result depends on which branch came first: who won stays who won."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from durable_runs import SEED, Cut, CutWriter

import flowforge as ff
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.flows.execution import start_flow
from flowforge.journal.journal import Journal
from flowforge.journal.records import RunBegun
from flowforge.journal.writer import JournalWriter
from flowforge.runtime.run_journal import RunJournal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from flowforge.flows.execution import FlowHandle
    from flowforge.flows.flow import Flow
    from flowforge.journal.records import Entry


async def answer(chat: ff.Chat, question: str) -> str:
    chat.user(question)
    first = await chat.gen(name="draft")
    chat.user("Shorter.")
    return first + " " + await chat.gen(name="short")


@ff.flow
async def race(run: ff.Run) -> str:
    async with run.chat(system="Be quick.") as chat:
        async with chat.fork(3, join="first") as fork:
            tasks = fork.start(answer, ["a", "b", "c"])
        chat.user("Go on from {text}.", text=tasks.result)
        return tasks.result + ": " + await chat.gen(name="last")


@ff.flow
async def ballot(run: ff.Run) -> str:
    async with run.chat(system="Vote.") as chat:
        chat.user("Yes or no?")
        decision = await chat.vote(bool, n=3, name="vote")
        chat.user("Why?")
        return f"{decision}: " + await chat.gen(name="last")


def answers(slow: dict[str, str], quick: dict[str, str]) -> dict[str, Any]:
    """slow: answers that do not come before the process is gone."""
    never = {key: ScriptedAnswer(text, gate=anyio.Event()) for key, text in slow.items()}
    return {**never, **quick}


class GoneWriter(CutWriter):
    """Ends at a commit, and with it everything that still waits for an answer."""

    def __init__(self, journal: Journal, last: int, script: dict[str, Any]) -> None:
        super().__init__(journal, last)
        self._script = script

    async def commit(self, run_id: str, entries: Sequence[Entry]) -> None:
        try:
            await super().commit(run_id, entries)
        except Cut:
            for one in self._script.values():
                if isinstance(one, ScriptedAnswer) and one.gate is not None:
                    one.gate.set()
            raise


@asynccontextmanager
async def durable(
    flow: Flow[[], str], writer: JournalWriter, backend: ScriptBackend, *, is_resumed: bool
) -> AsyncGenerator[FlowHandle[str]]:
    if is_resumed:
        journal = RunJournal.resume(writer, "r", {})
    else:
        begun = RunBegun("race", "flows.py:race", {}, SEED, {}, {}, time.time())
        journal = RunJournal.begin(writer, "r", begun)
    async with start_flow(flow, {}, backend, seed=SEED, journal=journal) as handle:
        yield handle


async def cut_at(path: Path, last: int, flow: Flow[[], str], script: dict[str, Any]) -> bool:
    """Whether the run came to its end before commit `last`."""
    with Journal(path) as journal:
        writer = GoneWriter(journal, last, script)
        try:
            async with durable(flow, writer, ScriptBackend(script), is_resumed=False) as handle:
                await handle.result()
        except Exception as error:
            assert not isinstance(error, AssertionError)
            return False
    return True


BRANCHES = ("fork[0]", "fork[1]", "fork[2]")


def race_script(winner: str) -> dict[str, Any]:
    """Only one branch gets its answers."""
    others = [branch for branch in BRANCHES if branch != winner]
    slow = {f"{branch}/*": "late" for branch in others}
    return answers(slow, {f"{winner}/draft": "quick", f"{winner}/short": "one", "last": "the end"})


async def test_the_branch_that_won_is_the_winner_after_a_cut_at_any_commit(tmp_path: Path) -> None:
    num_decided = 0
    for last in range(1, 60):
        path = tmp_path / f"{last}.db"
        if await cut_at(path, last, race, race_script("fork[1]")):
            break
        with Journal(path) as journal:
            works = journal.works("r")
            was_decided = any(work.kind == "join" for work in works)
            done = {work.path for work in works if work.status == "done"}
            if journal.run("r").status == "done":
                continue
            # In this process another branch would be the first, unless one has all its answers.
            is_ahead = was_decided or "fork[1]/short" in done
            winner = "fork[1]" if is_ahead else "fork[2]"
            backend = ScriptBackend(race_script("fork[2]"))
            async with durable(race, JournalWriter(journal), backend, is_resumed=True) as handle:
                assert "quick one: the end" == await handle.result()
            asked = {prompt.label.partition("/")[0] for prompt in backend.prompts}
            if was_decided:
                num_decided += 1
                assert not asked & set(BRANCHES)
            (join,) = [work for work in journal.works("r") if work.kind == "join"]
            assert {"winner": winner} == join.result
            left = [work.path for work in journal.works("r") if work.status is None]
            assert not [path for path in left if path.startswith(winner)]
    else:
        pytest.fail("the run never came to its end")
    assert num_decided >= 2


async def test_the_losers_of_a_race_are_stopped_in_the_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.db") as journal:
        backend = ScriptBackend(race_script("fork[0]"))
        async with durable(race, JournalWriter(journal), backend, is_resumed=False) as handle:
            await handle.result()
        ends = {work.path: work.status for work in journal.works("r")}

    assert "done" == ends["fork[0]/draft"]
    lost = [status for path, status in ends.items() if path.startswith(("fork[1]", "fork[2]"))]
    assert ["stopped", "stopped"] == lost


async def test_a_vote_that_was_decided_early_goes_on_from_the_same_answer(tmp_path: Path) -> None:
    first = answers({"vote[0]": "true"}, {"vote[1]": "true", "vote[2]": "true", "last": "so"})
    second = {"vote[0]": "true", "last": "so"}
    num_decided = 0
    for last in range(1, 60):
        path = tmp_path / f"{last}.db"
        if await cut_at(path, last, ballot, first):
            break
        with Journal(path) as journal:
            works = journal.works("r")
            if not any(work.kind == "join" for work in works) or journal.run("r").status == "done":
                continue
            num_decided += 1
            backend = ScriptBackend(second)
            async with durable(ballot, JournalWriter(journal), backend, is_resumed=True) as handle:
                assert "True: so" == await handle.result()
            assert {"last"} >= {prompt.label for prompt in backend.prompts}
    assert num_decided >= 1
