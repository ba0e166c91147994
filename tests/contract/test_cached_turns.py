"""Turns of Python flows with `cache`: an equal one is not written again, and what differs is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import flowforge as ff
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.errors import WorkflowError
from flowforge.flows.execution import start_flow
from flowforge.journal.journal import Journal
from flowforge.journal.records import RunBegun
from flowforge.journal.writer import JournalWriter
from flowforge.runtime.events import StepCached
from flowforge.runtime.history import history_of
from flowforge.runtime.run import RunFailedError
from flowforge.runtime.run_journal import RunJournal

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.flows.flow import Flow
    from flowforge.runtime.caching import CacheNote


class Lab:
    """Runs of flows on one journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.writer = JournalWriter(journal)
        self.num_runs = 0
        self.notes: list[CacheNote] = []
        self.asked: list[str] = []
        self.hits: list[str] = []

    async def run(self, flow: Flow[..., Any], script: dict[str, Any], **inputs: str) -> Any:
        """What the flow returned; asked, hits and notes are then those of this run."""
        self.num_runs += 1
        begun = RunBegun("f", "f.py:f", inputs, self.num_runs, {}, {}, time.time())
        journal = RunJournal.begin(self.writer, f"r{self.num_runs}", begun)
        backend = ScriptBackend(script)
        values = flow.resolve_inputs(inputs)
        async with start_flow(flow, values, backend, seed=begun.seed, journal=journal) as run:
            events = [event.fact async for event in run.events()]
            result = await run.result()
        assert journal.cache is not None
        assert backend.num_open == 0
        self.notes = journal.cache.notes
        self.asked = [prompt.label for prompt in backend.prompts]
        self.hits = [fact.path for fact in events if isinstance(fact, StepCached)]
        return result


@pytest.fixture
def lab(tmp_path: Path) -> Any:
    with Journal(tmp_path / "runs.db") as journal:
        yield Lab(journal)


@ff.flow
async def talk(run: ff.Run, topic: str) -> str:
    async with run.chat(system="Be brief.") as chat:
        chat.user("Facts about {topic}.", topic=topic)
        facts = await chat.gen(list[str], name="facts", cache=True, temperature=0.0)
        chat.user("Which is the best?")
        return f"{len(facts)}: " + await chat.gen(name="best", cache="1d", temperature=0.0)


SCRIPT = {"facts": '["a", "b"]', "best": "a is"}


async def test_an_equal_turn_is_taken_and_the_chat_goes_on_from_it(lab: Lab) -> None:
    first = await lab.run(talk, SCRIPT, topic="bees")
    assert (["facts", "best"], []) == (lab.asked, lab.hits)

    second = await lab.run(talk, {}, topic="bees")

    assert first == second == "2: a is"
    assert ([], ["facts", "best"]) == (lab.asked, lab.hits)
    steps = history_of(lab.journal, "r2").picture.steps
    assert steps["facts"].is_cached
    assert steps["best"].is_cached


async def test_what_was_said_before_decides_and_a_miss_says_what_differs(lab: Lab) -> None:
    await lab.run(talk, SCRIPT, topic="bees")

    await lab.run(talk, SCRIPT, topic="wasps")

    assert (["facts", "best"], []) == (lab.asked, lab.hits)
    assert [("prompt",), ("conversation",)] == [note.differs for note in lab.notes]


async def test_equal_turns_at_one_time_are_written_once(lab: Lab) -> None:
    async def say(chat: ff.Chat, _: int) -> str:
        chat.user("Say it.")
        return await chat.gen(name="said", cache=True, temperature=0.0)

    @ff.flow
    async def chorus(run: ff.Run) -> list[str]:
        async with run.chat() as chat:
            return await chat.map(say, [1, 2, 3])

    gate = anyio.Event()
    gate.set()

    result = await lab.run(chorus, {"*": ScriptedAnswer("it", gate=gate)})

    assert ["it", "it", "it"] == result
    assert (1, 2) == (len(lab.asked), len(lab.hits))


async def test_branches_that_sample_are_each_their_own(lab: Lab) -> None:
    @ff.flow
    async def dice(run: ff.Run) -> int:
        async with run.chat() as chat:
            chat.user("Throw.")
            return await chat.vote(
                int, n=2, stop_when="all", name="dice", cache=True, temperature=0.8
            )

    await lab.run(dice, {"dice[0]": "4", "dice[1]": "4"})
    assert ["dice[0]", "dice[1]"] == sorted(lab.asked)

    assert 4 == await lab.run(dice, {})
    assert ["dice[0]", "dice[1]"] == sorted(lab.hits)


async def test_a_run_that_goes_on_keeps_what_it_took(lab: Lab) -> None:
    await lab.run(talk, SCRIPT, topic="bees")
    lab.journal.forget_results(time.time() + 10.0)
    await lab.run(talk, {"facts": '["a", "b"]', "best": "b is"}, topic="bees")
    assert ["facts", "best"] == lab.asked
    begun = RunBegun("f", "f.py:f", {"topic": "bees"}, 3, {}, {}, time.time())
    with pytest.raises(RunFailedError):
        async with start_flow(
            talk,
            talk.resolve_inputs({"topic": "bees"}),
            ScriptBackend({}),
            journal=RunJournal.begin(lab.writer, "cut", begun),
        ) as run:
            lab.journal.forget_results(time.time() + 10.0)
            await run.result()

    resumed = RunJournal.resume(lab.writer, "cut", {})
    async with start_flow(
        talk, talk.resolve_inputs({"topic": "bees"}), ScriptBackend(SCRIPT), journal=resumed
    ) as run:
        assert "2: a is" == await run.result()


async def test_an_age_that_is_none_is_refused(lab: Lab) -> None:
    @ff.flow
    async def bad(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Hi.")
            return await chat.gen(cache="soon")

    with pytest.raises(RunFailedError) as caught:
        await lab.run(bad, {"*": "x"})

    (failure,) = caught.value.failures
    assert isinstance(failure.error, WorkflowError)
    assert "WF120" == failure.error.code
