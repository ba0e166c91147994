"""Runs that are cut and go on: the same result, the same journal, nothing done twice.

A cut is the end of all commits: what was on the disk stays, everything else is lost, as by the end
of a process. `test_killed_processes.py` does the same with processes that are killed.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from durable_runs import CutWriter, durable_run, facts_of, works_of
from durable_workflows import WORKFLOWS, write_workflow
from programs import ask, block, call, for_each, gen, parallel, program, set_, tool

from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.errors import EngineError, WorkflowError
from flowforge.journal.journal import Journal
from flowforge.journal.writer import JournalWriter
from flowforge.language.join_policies import First
from flowforge.language.program import Catch, Retry
from flowforge.runtime.checking import load
from flowforge.runtime.definitions import definitions_of
from flowforge.runtime.events import (
    RunCancelled,
    RunFinished,
    RunResumed,
    StepAsked,
    StepFinished,
    StepStarted,
    StepText,
)
from flowforge.runtime.people import PreparedAnswers
from flowforge.runtime.run import Run, RunFailedError, start
from flowforge.runtime.run_journal import RunJournal
from flowforge.testing import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.commands import StartQuestion
    from flowforge.runtime.events import Event


async def cut(
    path: Path,
    workflow: Program,
    last: int = 1_000,
    *,
    is_written: bool = True,
    last_partial: int = 1_000,
    **options: Any,
) -> bool:
    """Run until commit `last`, or that many partials; whether the run was over before."""
    with Journal(path) as journal:
        writer = CutWriter(journal, last, is_written=is_written, last_partial=last_partial)
        try:
            async with durable_run(writer, workflow, options.pop("inputs", {}), **options) as run:
                await run.result()
        except RunFailedError as error:
            return {failure.path for failure in error.failures} != {"run"}
    return True


async def resumed(
    path: Path, workflow: Program, **options: Any
) -> tuple[Mapping[str, JsonValue], list[Event]]:
    """Go on to the end, unless the run was cut after it."""
    with Journal(path) as journal:
        writer = JournalWriter(journal)
        row = journal.run("r")
        if row.status == "done":
            assert isinstance(row.outcome, dict)
            return row.outcome, []
        inputs = row.begun.inputs
        async with durable_run(writer, workflow, inputs, is_resumed=True, **options) as run:
            events = [event async for event in run.events()]
            return await run.result(), events


async def whole(path: Path, workflow: Program, **options: Any) -> Mapping[str, JsonValue]:
    with Journal(path) as journal:
        inputs = options.pop("inputs", {})
        async with durable_run(JournalWriter(journal), workflow, inputs, **options) as run:
            return await run.result()


async def asked(run: Run) -> None:
    """Return when somebody is asked."""
    async with aclosing(run.events().__aiter__()) as events:
        async for event in events:
            if isinstance(event.fact, StepAsked):
                return


def status(path: Path) -> str:
    with Journal(path) as journal:
        return journal.run("r").status


def num_open_calls(path: Path) -> int:
    """Calls whose start was committed and whose end was not: each may have been made."""
    with Journal(path) as journal:
        return sum(work.kind == "call" for work in journal.open_works("r"))


def lines_of(ledger: Path) -> list[str]:
    """What tools did since the last time that this was asked."""
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    ledger.unlink(missing_ok=True)
    return sorted(lines)


# -- the whole matrix ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKFLOWS)
@pytest.mark.timeout(120)
async def test_a_run_cut_at_any_commit_comes_to_the_same_result_and_journal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WF-049, WF-050, WF-051: after every other commit, and before those between."""
    monkeypatch.chdir(tmp_path)
    workflow = load(write_workflow(name, tmp_path))
    ledger = tmp_path / "ledger"
    inputs: dict[str, JsonValue] = {"ledger": str(ledger)}
    expected = await whole(tmp_path / "whole.db", workflow, inputs=inputs)
    lines = lines_of(ledger)
    works, facts = works_of(tmp_path / "whole.db"), facts_of(tmp_path / "whole.db")
    last = 1
    while not await cut(
        tmp_path / f"{last}.db", workflow, last, inputs=inputs, is_written=last % 2 == 0
    ):
        num_under_way = num_open_calls(tmp_path / f"{last}.db")
        outputs, _ = await resumed(tmp_path / f"{last}.db", workflow)

        assert expected == outputs, f"commit {last}"
        assert works == works_of(tmp_path / f"{last}.db"), f"commit {last}"
        assert facts == facts_of(tmp_path / f"{last}.db"), f"commit {last}"
        # A call that was under way is made again; none that was committed is.
        done = lines_of(ledger)
        assert set(lines) == set(done)
        assert len(done) <= len(lines) + num_under_way, f"commit {last}: {done}"
        last += 1
    assert last > 8


async def test_a_run_can_be_cut_again_and_again(tmp_path: Path) -> None:
    workflow = load(write_workflow("branches", tmp_path))
    inputs: dict[str, JsonValue] = {"ledger": ""}
    expected = await whole(tmp_path / "whole.db", workflow, inputs=inputs)
    path = tmp_path / "cut.db"
    await cut(path, workflow, 2, inputs=inputs)
    while status(path) == "running":
        # Each process comes two commits further than the one before.
        await cut(path, workflow, 3, inputs=inputs, is_resumed=True)

    with Journal(path) as journal:
        run = journal.run("r")
        assert ("done", expected) == (run.status, run.outcome)
        # How many ends one commit takes is a matter of when they come.
        assert run.num_resumes > 1
    assert works_of(tmp_path / "whole.db") == works_of(path)


# -- what is taken over ----------------------------------------------------------------------------


async def test_a_generation_that_was_cut_goes_on_behind_its_words(tmp_path: Path) -> None:
    """WF-051: b starts twice and ends once, and the journal says that it was interrupted."""
    workflow = program(gen("a"), gen("b", "a", from_step="a"), gen("c", "b", from_step="b"))
    script = {"a": "one", "b": "two three four five", "c": "six"}
    await cut(tmp_path / "j.db", workflow, last_partial=3, backend=ScriptBackend(script))
    backend = ScriptBackend(script)
    outputs, events = await resumed(tmp_path / "j.db", workflow, backend=backend)

    assert script == outputs
    assert ["b", "c"] == [prompt.label for prompt in backend.prompts]
    texts = [event.fact for event in events if isinstance(event.fact, StepText)]
    assert [("two three ", 2), ("four ", 1), ("five", 1)] == [
        (text.text, text.num_tokens) for text in texts if text.path == "b"
    ]
    assert [RunResumed(1, ("b",))] == [e.fact for e in events if isinstance(e.fact, RunResumed)]
    assert ["a", "b", "c"] == [e.fact.path for e in events if isinstance(e.fact, StepStarted)]
    assert sorted({event.seq for event in events}) == [event.seq for event in events]
    with Journal(tmp_path / "j.db") as journal:
        assert [1, 2, 1] == [work.num_starts for work in journal.works("r")]


async def test_the_conversation_of_a_finished_step_is_made_again_when_somebody_forks_it(
    tmp_path: Path,
) -> None:
    workflow = program(
        gen("a", system="You are brief.", user="one?"),
        gen("b", "a", from_step="a", user="two?"),
        gen("c", "b", from_step="b", user="three?"),
        gen("d", "b", from_step="b", user="four?"),
    )
    script = {"a": "A", "b": "B", "c": "C", "d": "D"}
    unbroken = ScriptBackend(script)
    await whole(tmp_path / "whole.db", workflow, backend=unbroken)
    await cut(tmp_path / "j.db", workflow, 3, backend=ScriptBackend(script))
    backend = ScriptBackend(script)
    await resumed(tmp_path / "j.db", workflow, backend=backend)

    expected = {prompt.label: prompt.text for prompt in unbroken.prompts}
    assert {name: expected[name] for name in "cd"} == {p.label: p.text for p in backend.prompts}


async def test_siblings_that_had_ended_are_not_run_again_when_one_of_them_failed(
    tmp_path: Path,
) -> None:
    """WF-050."""
    items: list[JsonValue] = ["0", "1", "2", "3", "4"]
    workflow = program(for_each("each", items, block(gen("g", user="${ item }")), limit=4))
    lost = ScriptedAnswer("half", error=EngineError("EN900", "lost"))
    slow = ScriptedAnswer("2", gate=anyio.Event())
    first = ScriptBackend({"each[3]/g": lost, "each[2]/g": slow, "*": "1"})
    path = tmp_path / "j.db"
    with pytest.raises(RunFailedError):
        await whole(path, workflow, backend=first)
    with Journal(path) as journal:
        done = {work.path for work in journal.works("r") if work.status == "done"}
    backend = ScriptBackend({"*": "1"})
    outputs, events = await resumed(path, workflow, backend=backend)

    assert {"each": ["1"] * 5} == outputs
    asked = {prompt.label for prompt in backend.prompts}
    assert {"each[2]/g", "each[3]/g"} <= asked
    assert not done & asked
    ends = [event.fact.path for event in events if isinstance(event.fact, StepFinished)]
    assert ["each", *(f"each[{idx}]/g" for idx in range(5))] == sorted(ends)


async def test_who_came_first_stays_first(tmp_path: Path) -> None:
    workflow = program(
        parallel("race", left=gen("left"), right=gen("right"), join=First()),
        gen("after", "race", user="${ race }"),
    )
    gate = anyio.Event()
    backend = ScriptBackend(
        {"race/left": ScriptedAnswer("L", gate=gate), "race/right": "R", "after": "done"}
    )
    last = 1
    while not await cut(tmp_path / f"{last}.db", workflow, last, backend=backend):
        with Journal(tmp_path / f"{last}.db") as journal:
            is_decided = any(work.path == "after" for work in journal.works("r"))
        if is_decided and status(tmp_path / f"{last}.db") == "running":
            eager = ScriptBackend({"race/left": "L", "race/right": "R", "after": "done"})
            outputs, _ = await resumed(tmp_path / f"{last}.db", workflow, backend=eager)
            assert {"race": "R", "after": "done"} == outputs
        last += 1
    assert last > 3


async def test_a_try_that_failed_is_not_tried_again(tmp_path: Path) -> None:
    lost = ScriptedAnswer(error=EngineError("EN900", "lost"))
    workflow = program(gen("a", keys={"retry": Retry(3, 3600.0, 1.0, 3600.0, "none")}))
    path = tmp_path / "j.db"
    await cut(path, workflow, 2, backend=ScriptBackend({"a": lost}), clock=VirtualClock())
    backend = ScriptBackend({"a": [lost, "done"]})
    outputs, _ = await resumed(path, workflow, backend=backend, clock=VirtualClock())

    assert {"a": "done"} == outputs
    assert ["a#2", "a#3"] == [prompt.label for prompt in backend.prompts]


async def test_a_caught_failure_is_handled_once(tmp_path: Path) -> None:
    """WF-049."""
    lost = ScriptedAnswer(error=EngineError("EN900", "lost"))
    handler = Catch("error", (), block(gen("h", user="${ error.code }")))
    workflow = program(gen("a", keys={"catch": handler}), gen("b", "a"))
    path = tmp_path / "j.db"
    await cut(path, workflow, 3, backend=ScriptBackend({"a": lost, "a/catch/h": "H", "b": "B"}))
    backend = ScriptBackend({"b": "B"})
    outputs, _ = await resumed(path, workflow, backend=backend)

    assert {"a": "H", "b": "B"} == outputs
    assert ["b"] == [prompt.label for prompt in backend.prompts]


# -- people ----------------------------------------------------------------------------------------


class Absent:
    """A person who does not answer."""

    async def __call__(self, question: StartQuestion) -> str:
        await anyio.sleep_forever()
        raise AssertionError


async def test_a_question_waits_across_processes_and_its_time_goes_on(tmp_path: Path) -> None:
    workflow = program(ask("gate", timeout_s=3600.0, on_timeout="late"))
    path = tmp_path / "j.db"
    with Journal(path) as journal:
        cutting = CutWriter(journal, 2)
        async with durable_run(cutting, workflow, {}, asker=Absent()) as run:
            await asked(run)
    assert status(path) == "running"
    with Journal(path) as journal:
        writer, clock = JournalWriter(journal), VirtualClock()
        async with durable_run(
            writer, workflow, {}, is_resumed=True, asker=Absent(), clock=clock, waited_s=3000.0
        ) as run:
            outputs = await run.result()

    assert {"gate": "late"} == outputs
    assert clock.now() == pytest.approx(600.0, abs=5.0)


# -- calls with effects ----------------------------------------------------------------------------


def paying(on_uncertain: str, effect: str = "write") -> Program:
    tools = (tool("pay", "durable_tools:pay", effect=effect, on_uncertain=on_uncertain),)
    step = call("paid", "pay", ledger="inputs.ledger", what='"me"')
    return replace(program(step, set_("after", "paid", "paid"), tools=tools), inputs={})


async def cut_while_paying(path: Path, workflow: Program) -> list[str]:
    """The tool has done its work and the process ends before that is on the disk."""
    ledger = path.with_name("ledger")
    await cut(path, workflow, 2, inputs={"ledger": str(ledger)}, is_written=False)
    return ledger.read_text().splitlines()


async def test_a_call_that_may_have_been_made_is_a_question(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    assert ["pay me"] == await cut_while_paying(path, paying("ask"))
    outputs, events = await resumed(
        path, paying("ask"), asker=PreparedAnswers({"paid": "it is done"})
    )

    assert {"paid": None, "after": None} == outputs
    assert ["pay me"] == (tmp_path / "ledger").read_text().splitlines()
    (asked,) = [event.fact for event in events if isinstance(event.fact, StepAsked)]
    assert ("paid", ("run it again", "it is done", "fail")) == (asked.path, asked.choices)


async def test_a_call_that_nobody_can_speak_for_stays_uncertain(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    await cut_while_paying(path, paying("ask"))
    for _ in range(2):
        with pytest.raises(RunFailedError, match="WF703"):
            await resumed(path, paying("ask"), asker=PreparedAnswers({}))
    assert ["pay me"] == (tmp_path / "ledger").read_text().splitlines()

    outputs, _ = await resumed(path, paying("ask"), on_uncertain="retry")
    assert "paid me" == outputs["after"]


@pytest.mark.parametrize(("on_uncertain", "effect"), [("retry", "write"), ("ask", "idempotent")])
async def test_a_call_that_may_be_made_again_is(
    on_uncertain: str, effect: str, tmp_path: Path
) -> None:
    path, workflow = tmp_path / "j.db", paying(on_uncertain, effect)
    await cut_while_paying(path, workflow)
    outputs, _ = await resumed(path, workflow, asker=PreparedAnswers({}))

    assert "paid me" == outputs["paid"]
    assert ["pay me"] * 2 == (tmp_path / "ledger").read_text().splitlines()


# -- changed workflows -----------------------------------------------------------------------------


async def test_a_completed_step_that_was_changed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    script = ScriptBackend({"*": "text"})
    await cut(path, program(gen("a"), gen("b", "a"), gen("c", "b")), 3, backend=script)
    changed = program(gen("a", user="other"), gen("b", "a"), gen("c", "b", user="new"))
    with pytest.raises(WorkflowError, match="completed step 'a' was changed") as caught:
        await resumed(path, changed)

    assert "WF702" == caught.value.code
    assert "running" == status(path)


async def test_steps_that_were_not_run_may_change_and_new_ones_come(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    await cut(path, program(gen("a"), gen("b", "a")), 2, backend=ScriptBackend({"*": "text"}))
    changed = program(gen("new"), gen("a"), gen("b", "a", user="other"), gen("d", "b", "new"))
    backend = ScriptBackend({"*": "text"})
    _, events = await resumed(path, changed, backend=backend)

    assert ["b", "d", "new"] == sorted(prompt.label for prompt in backend.prompts)
    ends = sorted(event.fact.path for event in events if isinstance(event.fact, StepFinished))
    assert ["a", "b", "d", "new"] == ends


async def test_what_a_rerun_takes_over_must_be_asked_as_it_was(tmp_path: Path) -> None:
    """A computed value before it changed, which is no work and has no row of its own."""
    before = program(set_("s", '"old"'), gen("b", "s", user="${ s }"), gen("c", "b"))
    changed = program(set_("s", '"new"'), gen("b", "s", user="${ s }"), gen("c", "b"))
    with Journal(tmp_path / "j.db") as journal:
        writer, backend = JournalWriter(journal), ScriptBackend({"*": "text"})
        async with durable_run(writer, before, {}, backend=backend) as run:
            await run.result()
        for workflow, code in ((before, None), (changed, "WF702")):
            definitions = definitions_of(workflow)
            begun = replace(journal.run("r").begun, definitions=definitions)
            again = RunJournal.rerun(writer, "r", f"again-{code}", begun, "c")
            asked_again = ScriptBackend({"c": "late"})
            try:
                async with start(workflow, {}, asked_again, journal=again) as run:
                    assert "late" == (await run.result())["c"]
            except RunFailedError as error:
                assert [code] == [failure.error.code for failure in error.failures]
            else:
                assert code is None


# -- whose run it is -------------------------------------------------------------------------------


async def test_a_run_that_is_done_or_taken_cannot_be_resumed(tmp_path: Path) -> None:
    """REL-011."""
    path, workflow = tmp_path / "j.db", program(set_("a", "1"))
    await whole(path, workflow)
    with Journal(path) as journal, pytest.raises(WorkflowError, match="is done"):
        async with durable_run(JournalWriter(journal), workflow, {}, is_resumed=True):
            pass
    waiting = program(ask("gate"))
    with Journal(tmp_path / "k.db") as journal:
        writer = JournalWriter(journal)
        async with durable_run(writer, waiting, {}, asker=Absent()) as run:
            with pytest.raises(EngineError, match="is going on in process"):
                async with durable_run(writer, waiting, {}, is_resumed=True):
                    pass
            run.cancel()


async def test_a_cancelled_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """REL-026."""
    workflow = program(gen("a"), ask("gate", "a"), gen("b", "gate", "a", from_step="a"))
    path = tmp_path / "j.db"
    with Journal(path) as journal:
        writer = JournalWriter(journal)
        backend = ScriptBackend({"*": "text"})
        async with durable_run(writer, workflow, {}, asker=Absent(), backend=backend) as run:
            await asked(run)
            run.cancel()
    assert "cancelled" == status(path)
    backend = ScriptBackend({"*": "text"})
    outputs, events = await resumed(
        path, workflow, backend=backend, asker=PreparedAnswers({"gate": "go"})
    )

    assert {"a": "text", "gate": "go", "b": "text"} == outputs
    assert ["b"] == [prompt.label for prompt in backend.prompts]
    assert 1 == sum(1 for event in events if isinstance(event.fact, StepAsked))


async def test_a_full_disk_stops_the_run_and_leaves_it_to_be_resumed(tmp_path: Path) -> None:
    """REL-010."""
    workflow = program(gen("a"), gen("b", "a"))
    script = {"a": "small", "b": "".join(map(chr, range(1000, 60_000)))}
    path = tmp_path / "j.db"
    with Journal(path) as journal:
        disk = journal._writer  # pyright: ignore[reportPrivateUsage] # no public way to be full
        disk.execute("PRAGMA max_page_count = 22")
        async with durable_run(
            JournalWriter(journal), workflow, {}, backend=ScriptBackend(script)
        ) as run:
            with pytest.raises(RunFailedError, match="no space is left") as caught:
                await run.result()
    assert {"EN702"} == {failure.error.code for failure in caught.value.failures}
    backend = ScriptBackend(script)
    outputs, _ = await resumed(path, workflow, backend=backend)

    assert script == outputs
    assert ["b"] == [prompt.label for prompt in backend.prompts]


async def test_what_ends_together_is_synced_together(tmp_path: Path) -> None:
    gate = anyio.Event()
    items: list[JsonValue] = [str(idx) for idx in range(32)]
    workflow = program(for_each("each", items, block(gen("g", user="${ item }"))))
    backend = ScriptBackend({"*": ScriptedAnswer("text", gate=gate)})
    with Journal(tmp_path / "j.db") as journal:
        writer = JournalWriter(journal)
        async with durable_run(
            writer, workflow, {}, backend=backend, partial_interval_s=60.0
        ) as run:
            await anyio.wait_all_tasks_blocked()
            before = writer.num_commits
            gate.set()
            await run.result()

        # The branches, then the run's own end.
        assert writer.num_commits - before <= 3 + 1


@pytest.mark.parametrize("num_checkpoints", range(12))
async def test_a_cancel_beside_the_last_end_leaves_one_status(
    num_checkpoints: int, tmp_path: Path
) -> None:
    """REL-026: whenever the cancel comes, journal, events and result agree, and nothing follows."""
    workflow = program(gen("a"), gen("b", "a", from_step="a"))
    backend = ScriptBackend({"a": "one", "b": "two"})
    with Journal(tmp_path / "j.db") as journal:
        writer = JournalWriter(journal)
        async with durable_run(writer, workflow, {}, backend=backend) as run:
            async with aclosing(run.events().__aiter__()) as events:
                async for event in events:
                    if isinstance(event.fact, StepStarted) and event.fact.path == "b":
                        break
            for _ in range(num_checkpoints):
                await anyio.lowlevel.checkpoint()
            run.cancel()
            told = [event.fact async for event in run.events()]
        terminal = {"done": RunFinished, "cancelled": RunCancelled}[journal.run("r").status]
        last = list(journal.events("r"))[-1]

    assert isinstance(told[-1], terminal)
    assert last.kind == {RunFinished: "run_finished", RunCancelled: "run_cancelled"}[terminal]
    assert 1 == sum(isinstance(fact, RunFinished | RunCancelled) for fact in told)
