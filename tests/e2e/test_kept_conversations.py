"""A run that waits for a person, ends with its process, and goes on without a prefill."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from programs import ask, gen, program

from flowforge.backends.engine import open_engine_backend
from flowforge.journal.journal import Journal
from flowforge.journal.records import RunBegun
from flowforge.journal.writer import JournalWriter
from flowforge.language.answer_specs import SamplingSpec
from flowforge.runtime.definitions import definitions_of
from flowforge.runtime.events import RunFinished
from flowforge.runtime.people import PreparedAnswers, nobody
from flowforge.runtime.run import start
from flowforge.runtime.run_journal import RunJournal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flowforge.journal.records import Entry
    from flowforge.runtime.commands import StartQuestion
    from flowforge.runtime.events import Accounting

SHORT: dict[str, Any] = {"sampling": SamplingSpec(max_tokens=6)}
WORKFLOW = program(
    gen("first", user="Say something about " + "a very long story of bicycles, " * 12, **SHORT),
    ask("gate", "first"),
    gen("last", "gate", "first", from_step="first", user="And now?", **SHORT),
)


class GoneWriter(JournalWriter):
    """Of a process that is killed at some time: what it says later never reaches the disk."""

    is_gone = False

    async def commit(self, run_id: str, entries: Sequence[Entry]) -> None:
        if not self.is_gone:
            await super().commit(run_id, entries)


async def until_asked(model: Path, folder: Path) -> None:
    """The process ends while the question waits."""
    with Journal(folder / "j.db") as journal:
        begun = RunBegun("test", "t", {}, 3, definitions_of(WORKFLOW), {}, time.time())
        writer = GoneWriter(journal)
        entered = RunJournal.begin(writer, "r", begun)
        asked = anyio.Event()

        async def wait(question: StartQuestion) -> str:
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError(question)

        async with (
            open_engine_backend(model, kv_folder=folder / "kv") as backend,
            start(WORKFLOW, {}, backend, asker=wait, journal=entered, seed=3),
        ):
            await asked.wait()
            await backend.keep_prefixes()
            writer.is_gone = True


async def gone_on(model: Path, folder: Path) -> Accounting:
    with Journal(folder / "j.db") as journal:
        entered = RunJournal.resume(JournalWriter(journal), "r", definitions_of(WORKFLOW))
        asker = PreparedAnswers({"gate": "yes"}, nobody)
        async with (
            open_engine_backend(model, kv_folder=folder / "kv") as backend,
            start(WORKFLOW, {}, backend, asker=asker, journal=entered) as run,
        ):
            events = [event.fact async for event in run.events()]
            await run.result()
    end = events[-1]
    assert isinstance(end, RunFinished)
    return end.accounting


@pytest.mark.model
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_was_kept_at_a_question_is_not_prefilled_after_it(
    default_model_dir: Path, tmp_path: Path
) -> None:
    await until_asked(default_model_dir, tmp_path)
    accounting = await gone_on(default_model_dir, tmp_path)

    # At most the next turn (25), where it was not foreseen before the end, and the last token of
    # the one before, which nobody had computed.
    assert accounting.prefilled_tokens <= 26
    assert accounting.reused_tokens > 90
