"""Runs with a journal that can be cut at any commit, in this process, and gone on with."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from durable_workflows import ANSWERS, SCRIPT

from flowforge.backends.script import ScriptBackend
from flowforge.cli.backends import scripted_answers
from flowforge.journal.journal import Journal
from flowforge.journal.records import RunBegun
from flowforge.journal.writer import JournalWriter
from flowforge.runtime.definitions import definitions_of
from flowforge.runtime.people import PreparedAnswers
from flowforge.runtime.run import start
from flowforge.runtime.run_journal import RunJournal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from flowforge.journal.records import Entry, Partial
    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.run import Run

SEED = 7


class Cut(Exception):
    """The process is gone: nothing that it does from here on reaches the disk."""


class CutWriter(JournalWriter):
    """Ends at one of its commits, before it is on the disk or right after, or behind a partial."""

    def __init__(
        self,
        journal: Journal,
        last: int = 1_000,
        *,
        is_written: bool = True,
        last_partial: int = 1_000,
    ) -> None:
        super().__init__(journal)
        self._num_left = last
        self._num_partials_left = last_partial
        self._is_written = is_written

    async def commit(self, run_id: str, entries: Sequence[Entry]) -> None:
        self._num_left -= 1
        if self._num_left > 0 or (self._num_left == 0 and self._is_written):
            await super().commit(run_id, entries)
        if self._num_left <= 0:
            raise Cut

    async def keep_partials(self, run_id: str, partials: Sequence[Partial]) -> None:
        if self._num_left <= 0:
            raise Cut
        await super().keep_partials(run_id, partials)
        self._num_partials_left -= 1
        if self._num_partials_left == 0:
            self._num_left = 0
            raise Cut


@asynccontextmanager
async def durable_run(
    writer: JournalWriter,
    program: Program,
    inputs: Mapping[str, JsonValue],
    *,
    is_resumed: bool = False,
    partial_interval_s: float = 0.0,
    backend: ScriptBackend | None = None,
    on_uncertain: Any = None,
    waited_s: float = 0.0,
    **options: Any,
) -> AsyncGenerator[Run]:
    """A run called 'r' that is begun, or gone on with `waited_s` seconds later."""
    definitions = definitions_of(program)
    if is_resumed:
        journal = RunJournal.resume(writer, "r", definitions, on_uncertain=on_uncertain)
    else:
        begun = RunBegun(program.name, program.file, inputs, SEED, definitions, {}, time.time())
        journal = RunJournal.begin(writer, "r", begun)
    journal.recorder.partial_interval_s = partial_interval_s
    journal.recorder.now = lambda: time.time() + waited_s
    options = {"asker": PreparedAnswers(ANSWERS), "seed": SEED, **options}
    backend = backend or ScriptBackend(scripted_answers(SCRIPT))
    async with start(program, inputs, backend, journal=journal, **options) as run:
        yield run
    assert backend.num_open == 0, "a conversation outlives its run"


def works_of(path: Path, run_id: str = "r") -> list[tuple[object, ...]]:
    """What the journal says was done, without times, and without how it was computed.

    Tokens are counted: a script numbers words in the order in which it meets them. The step
    `source` is left out: its tool counts its own calls, and so sees what no journal has.
    """
    with Journal(path) as journal:
        return sorted(
            (
                *(work.path, work.turn, work.kind, work.status),
                *(repr(_said(work.result)), len(work.tokens or ())),
            )
            for work in journal.works(run_id)
            if work.kind != "timer" and not work.path.startswith("source")
        )


def facts_of(path: Path, run_id: str = "r") -> list[tuple[str, str, str]]:
    """What the journal says was told, without times, costs and order between branches."""
    with Journal(path) as journal:
        return sorted(
            (event.kind, event.path or "", repr(_said(event.fact)))
            for event in journal.events(run_id)
            if event.kind != "run_resumed" and not (event.path or "").startswith("source")
        )


def _said(told: JsonValue) -> JsonValue:
    if not isinstance(told, dict):
        return told
    unseen = {"usage", "num_written", "accounting", "delay_s", "location"}
    return {name: value for name, value in told.items() if name not in unseen}
