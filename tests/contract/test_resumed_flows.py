"""Flows that are cut and go on: the function runs again, and finds what it had done."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from durable_runs import SEED, CutWriter

import flowforge as ff
from flowforge.errors import WorkflowError
from flowforge.flows.execution import start_flow
from flowforge.journal.journal import Journal
from flowforge.journal.records import RunBegun
from flowforge.journal.writer import JournalWriter
from flowforge.runtime.events import RunResumed, StepFinished
from flowforge.runtime.run import RunFailedError
from flowforge.runtime.run_journal import RunJournal
from flowforge.testing import people, script

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from flowforge.flows.execution import FlowHandle

ANSWERS: dict[str, Any] = {
    "angles": ["cost", "law", "joy"],
    "explore[*]/draft": "a draft of some words",
    "report": "the report of it all",
}
CALLS: list[str] = []


@ff.tool(effect="write")
def send(text: str) -> str:
    """Send a text."""
    CALLS.append(text)
    return f"sent {text}"


async def explore(chat: ff.Chat, angle: str) -> str:
    chat.user("Explore {angle}.", angle=angle)
    return await chat.gen(name="draft")


@ff.flow
async def analyst(run: ff.Run, topic: str) -> str:
    async with run.chat(system="You are careful.") as chat:
        chat.user("Name three angles of {topic}.", topic=topic)
        angles = await chat.gen(list[str], name="angles")
        drafts = await chat.map(explore, angles, limit=2)
        go = await run.ask("Shall it be sent?", choices=["yes", "no"])
        chat.user("Merge: {notes}", notes=", ".join(drafts))
        report = await chat.gen(name="report")
        return await run.call(send, report) if go == "yes" else report


@asynccontextmanager
async def durable_flow(
    writer: JournalWriter, *, is_resumed: bool = False, answers: Any = ANSWERS, **options: Any
) -> AsyncGenerator[FlowHandle[str]]:
    inputs = {"topic": "bicycles"}
    if is_resumed:
        journal = RunJournal.resume(writer, "r", {}, **options)
    else:
        begun = RunBegun("analyst", "flows.py:analyst", inputs, SEED, {}, {}, time.time())
        journal = RunJournal.begin(writer, "r", begun)
    journal.recorder.partial_interval_s = 0.0
    backend, asker = script(answers), people({"ask": "yes"})
    values = analyst.resolve_inputs(inputs)
    async with start_flow(
        analyst, values, backend, seed=SEED, asker=asker, journal=journal
    ) as handle:
        yield handle
    assert backend.num_open == 0


def done_works(path: Path) -> list[tuple[str, object]]:
    with Journal(path) as journal:
        return sorted((one.path, one.status) for one in journal.works("r"))


async def test_a_flow_cut_at_any_commit_comes_to_the_same_result(tmp_path: Path) -> None:
    with Journal(tmp_path / "whole.db") as journal:
        async with durable_flow(JournalWriter(journal)) as handle:
            expected = await handle.result()
    works = done_works(tmp_path / "whole.db")
    last = 0
    while True:
        last += 1
        path = tmp_path / f"{last}.db"
        with Journal(path) as journal:
            try:
                writer = CutWriter(journal, last, is_written=last % 2 == 0)
                async with durable_flow(writer) as handle:
                    await handle.result()
                break
            except Exception as error:
                assert not isinstance(error, AssertionError)
        with Journal(path) as journal:
            if journal.run("r").status == "done":
                continue
            going_on = JournalWriter(journal)
            async with durable_flow(going_on, is_resumed=True, on_uncertain="retry") as handle:
                assert expected == await handle.result(), f"commit {last}"
            kinds = [event.kind for event in journal.events("r")]
            assert ("run_started", "run_resumed") == tuple(kinds[:2])
            assert ["run_finished"] == [kind for kind in kinds if kind.startswith("run_f")]
        assert works == done_works(path), f"commit {last}"
    assert last > 8


async def test_what_a_flow_had_done_is_not_done_again(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.db") as journal:
        with pytest.raises(RunFailedError):
            async with durable_flow(JournalWriter(journal), answers=_without("report")) as handle:
                await handle.result()
        CALLS.clear()
        async with durable_flow(
            JournalWriter(journal), is_resumed=True, answers={"report": "late"}
        ) as handle:
            events = [event async for event in handle.events()]
            assert "sent late" == await handle.result()

    assert ["late"] == CALLS
    assert [RunResumed(5)] == [e.fact for e in events if isinstance(e.fact, RunResumed)]
    ends = [event.fact.path for event in events if isinstance(event.fact, StepFinished)]
    assert {"angles", "explore[0]/draft", "report", "send"} <= set(ends)


async def test_a_flow_that_asks_with_something_else_is_refused(tmp_path: Path) -> None:
    @ff.flow
    async def changed(run: ff.Run, topic: str) -> str:
        async with run.chat() as chat:
            chat.user("Name angles of {topic}.", topic=topic)
            return await chat.gen(name="angles", max_tokens=3)

    with Journal(tmp_path / "j.db") as journal:
        with pytest.raises(RunFailedError):
            async with durable_flow(JournalWriter(journal), answers=_without("report")) as handle:
                await handle.result()
        resumed = RunJournal.resume(JournalWriter(journal), "r", {})
        values = changed.resolve_inputs({"topic": "bicycles"})
        with pytest.raises(RunFailedError) as caught:
            async with start_flow(changed, values, script(ANSWERS), journal=resumed) as handle:
                await handle.result()

    (failure,) = caught.value.failures
    assert isinstance(failure.error, WorkflowError)
    assert ("angles", "WF702") == (failure.path, failure.error.code)


def _without(path: str) -> dict[str, Any]:
    return {key: answer for key, answer in ANSWERS.items() if key != path}
