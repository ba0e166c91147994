"""Many runs of one workflow through one backend: rows of inputs in, rows of results out, in order.

Every row is a run of the journal, under a name that follows from the batch. So a batch that was cut
is gone on with by the same command: rows that are done are taken from the journal, rows that were
cut are resumed, and the output is what it would have been.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from flowforge.cli.row_files import RowResult
from flowforge.errors import FlowForgeError, WorkflowError
from flowforge.journal.contents import digest_of
from flowforge.journal.records import RunBegun
from flowforge.language.inputs import resolve_inputs
from flowforge.language.json_values import read_json
from flowforge.runtime.definitions import definitions_of
from flowforge.runtime.events import RunFailed, RunFinished
from flowforge.runtime.run import start
from flowforge.runtime.run_journal import RunJournal
from flowforge.runtime.run_secrets import secrets_of
from flowforge.runtime.seeds import derived_seed
from flowforge.runtime.tool_times import ToolTimes
from flowforge.task_groups import first_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flowforge.backends.protocol import Backend
    from flowforge.cli.open_runs import OpenRuns
    from flowforge.journal.records import RunRow
    from flowforge.journal.writer import JournalWriter
    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.caching import CacheNote
    from flowforge.runtime.people import Asker
    from flowforge.telemetry.run_log import RunLog

_SEED_BITS = 48
_MAX_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class Batch:
    """A workflow and its rows. name: the same for the same workflow file, rows and seed."""

    name: str
    program: Program
    rows: Sequence[Mapping[str, JsonValue]]
    seed: int

    @property
    def run_name(self) -> str:
        """How orders name the whole batch; the names of its runs begin with it."""
        return f"map-{self.name}"

    def run_id(self, row: int) -> str:
        """The run of a row."""
        return f"{self.run_name}-{row:06d}"

    def begun(self, row: int, options: Mapping[str, JsonValue]) -> RunBegun:
        """A row as a run of the journal."""
        return RunBegun(
            self.program.name,
            str(Path(self.program.file).absolute()),
            self.rows[row],
            derived_seed(self.seed, f"row {row}") >> (63 - _SEED_BITS),
            definitions_of(self.program),
            options,
            time.time(),
        )


def read_batch(program: Program, file: Path, seed: int | None) -> Batch:
    """The rows of a file with one JSON object a line; every one is checked before any runs.

    Raises WorkflowError WF540, WF31x for secrets that the environment lacks.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise WorkflowError("WF540", f"the rows {str(file)!r} cannot be read: {error}") from error
    secrets = secrets_of(program, {})
    rows: list[Mapping[str, JsonValue]] = []
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = resolve_inputs(program, _object_of(line))
            secrets.require_absent(row)
            rows.append(row)
        except (ValueError, FlowForgeError) as error:
            reason = error.message if isinstance(error, FlowForgeError) else str(error)
            problems.append(f"{file}:{number}: {reason}")
    if problems:
        shown = "\n".join(problems[:_MAX_PROBLEMS])
        more = len(problems) - _MAX_PROBLEMS
        raise WorkflowError(
            "WF540",
            f"{len(problems)} rows cannot be run:\n{shown}"
            + (f"\nand {more} more" if more > 0 else ""),
            help="each line is a JSON object of the workflow's inputs",
        )
    named = [str(Path(program.file).absolute()), [dict(row) for row in rows], seed]
    name = digest_of(cast("JsonValue", named))[:10]
    return Batch(name, program, rows, int(name, 16) if seed is None else seed)


class BatchRunner:
    """Runs the rows of a batch, as many at a time as may be, and hands results on in order."""

    def __init__(
        self,
        batch: Batch,
        backend: Backend,
        asker: Asker,
        writer: JournalWriter,
        options: Mapping[str, JsonValue],
        log: RunLog | None = None,
        take_notes: Callable[[int, Sequence[CacheNote]], None] | None = None,
    ) -> None:
        """take_notes: gets what the step cache had for each row that ran."""
        self._take_notes = take_notes
        self._log = log
        self._batch = batch
        self._backend = backend
        self._asker = asker
        self._writer = writer
        self._options = options
        self._tool_times = ToolTimes()

    async def run(
        self,
        rows: Iterable[int],
        open_runs: OpenRuns,
        take: Callable[[RowResult], None],
        *,
        tries_failed: bool = False,
    ) -> None:
        """Run these rows. take: gets each result, in the order of `rows`.

        tries_failed: go on with rows that failed before, instead of telling that they did. Raises
        what `take` raises; rows that run are cut then.
        """
        waiting = list(rows)
        order = iter(list(waiting))
        waiting.reverse()
        finished: dict[int, RowResult] = {}
        following = next(order, None)

        async def work() -> None:
            nonlocal following
            while waiting:
                async with open_runs.inside():
                    if not waiting:
                        return
                    row = waiting.pop()
                    finished[row] = await self._result_of(row, open_runs, tries_failed=tries_failed)
                while following in finished:
                    take(finished.pop(following))
                    following = next(order, None)

        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(min(open_runs.most, len(waiting))):
                    tasks.start_soon(work)
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def _result_of(self, row: int, open_runs: OpenRuns, *, tries_failed: bool) -> RowResult:
        try:
            journal = self._journal_of(row, tries_failed=tries_failed)
            if isinstance(journal, RowResult):
                return journal
            with journal:
                return await self._run(row, journal, open_runs)
        except FlowForgeError as error:
            return RowResult(row, None, (f"{error.message} [{error.code}]",))

    def _journal_of(self, row: int, *, tries_failed: bool) -> RunJournal | RowResult:
        """A row's place in the journal, or its result where it has one."""
        run_id = self._batch.run_id(row)
        found = self._writer.journal.find_run(run_id)
        if found is None:
            begun = self._batch.begun(row, self._options)
            return RunJournal.begin(self._writer, run_id, begun)
        if found.status == "done" or (found.status == "failed" and not tries_failed):
            return _result_of_run(row, found)
        return RunJournal.resume(self._writer, run_id, definitions_of(self._batch.program))

    async def _run(self, row: int, journal: RunJournal, open_runs: OpenRuns) -> RowResult:
        inputs = self._batch.rows[row]
        seed = self._batch.begun(row, self._options).seed
        async with start(
            self._batch.program,
            inputs,
            self._backend,
            seed=seed,
            asker=self._asker,
            journal=journal,
            tool_times=self._tool_times,
        ) as run:
            async for event in run.events():
                if isinstance(event.fact, RunFinished | RunFailed):
                    open_runs.ended(event.fact.accounting)
                if self._log is not None and event.seq >= journal.first_seq:
                    self._log.take(event, journal.run_id)
        if self._take_notes is not None and journal.cache is not None:
            self._take_notes(row, journal.cache.notes)
        found = self._writer.journal.run(self._batch.run_id(row))
        return _result_of_run(row, found)


def _result_of_run(row: int, run: RunRow) -> RowResult:
    match run.status:
        case "done":
            return RowResult(row, run.outcome, ())
        case "failed":
            failures = cast("list[dict[str, Any]]", run.outcome)
            told = tuple(f"{one['path']}: {one['message']} [{one['code']}]" for one in failures)
            return RowResult(row, None, told)
        case "running" | "cancelled":
            return RowResult(row, None, ("the run was cut before its end",))


def _object_of(line: str) -> dict[str, JsonValue]:
    value = read_json(line)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value
