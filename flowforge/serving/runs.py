"""Runs of served workflows: begun over HTTP, followed, answered and cancelled there.

Each is a run as `flowforge run` makes it, with its place in the journal, where it can be resumed,
and its socket, where `flowforge watch` and the other orders find it.
"""

from __future__ import annotations

import logging
import time
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from flowforge.control.desk import Control
from flowforge.control.orders import socket_path
from flowforge.errors import FlowForgeError, WorkflowError, WrongInputsError
from flowforge.journal.names import new_run_id
from flowforge.journal.records import RunBegun
from flowforge.language.inputs import resolve_inputs
from flowforge.runtime.definitions import definitions_of
from flowforge.runtime.event_json import event_as_json
from flowforge.runtime.events import RunCancelled, RunFailed, RunFinished
from flowforge.runtime.run import start
from flowforge.runtime.run_journal import RunJournal
from flowforge.runtime.run_secrets import secrets_of
from flowforge.runtime.seeds import drawn_seed
from flowforge.runtime.tool_times import ToolTimes
from flowforge.serving.failures import bad_request, failure_of, not_found
from flowforge.task_groups import open_task_group

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from flowforge.backends.protocol import Backend
    from flowforge.journal.records import RunStatus
    from flowforge.journal.writer import JournalWriter
    from flowforge.language.program import JsonValue, Program
    from flowforge.serving.keys import Key

_logger = logging.getLogger(__name__)

_MOST_ENDED = 256


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where runs are written down. options: what they must be resumed with."""

    writer: JournalWriter
    options: Mapping[str, JsonValue]


class ServedRun:
    """One run as clients see it. events: as JSON objects, in order; they are only ever added to."""

    def __init__(self, run_id: str, workflow: str, key: Key) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.key = key
        self.created_at = int(time.time())
        self.events: list[dict[str, JsonValue]] = []
        self.status: RunStatus = "running"
        self.control: Control | None = None
        self.failure: dict[str, Any] | None = None
        self._more = anyio.Event()
        self._cancel: Callable[[], None] = lambda: None
        self._is_cancelled = False

    def cancel(self) -> None:
        """End it early; its last event follows."""
        self._is_cancelled = True
        self._cancel()

    def let_cancel(self, cancel: Callable[[], None]) -> None:
        """It has begun and can be cancelled; at once if that was asked for before."""
        self._cancel = cancel
        if self._is_cancelled:
            cancel()

    def tell(self, event: dict[str, JsonValue]) -> None:
        """One more event."""
        self.events.append(event)
        self._wake()

    def end(self, status: RunStatus) -> None:
        """No more events come."""
        self.status = status
        self._wake()

    async def more_than(self, num_events: int) -> None:
        """Return when there are more events than these, or it has ended."""
        while len(self.events) <= num_events and self.status == "running":
            await self._more.wait()

    async def wait_over(self) -> None:
        """Return when it has ended."""
        while self.status == "running":
            await self._more.wait()

    def as_json(self) -> dict[str, Any]:
        """How it stands."""
        last = self.events[-1] if self.events else {}
        told: dict[str, Any] = {
            "id": self.run_id,
            "object": "workflow.run",
            "workflow": self.workflow,
            "created": self.created_at,
            "status": self.status,
            "outputs": last.get("outputs") if self.status == "done" else None,
            "failures": last.get("failures") if self.status == "failed" else None,
            "accounting": last.get("accounting"),
            "questions": [],
        }
        if self.failure is not None:
            told |= self.failure
        if self.status == "running" and self.control is not None:
            told["questions"] = self.control.questions()
        return told

    def _wake(self) -> None:
        more, self._more = self._more, anyio.Event()
        more.set()


class Runs:
    """Owns the runs of a server. Made by `open_runs`."""

    def __init__(
        self,
        programs: Sequence[Program],
        backend_of: Callable[[Key], Backend],
        place: RunPlace | None,
        tasks: TaskGroup,
    ) -> None:
        self.programs = {program.name: program for program in programs}
        self._backend_of = backend_of
        self._place = place
        self._tasks = tasks
        self._runs: dict[str, ServedRun] = {}
        self._tool_times = ToolTimes()

    @property
    def num_running(self) -> int:
        """Runs that have not ended."""
        return sum(run.status == "running" for run in self._runs.values())

    def program(self, name: str) -> Program:
        """A served workflow. Raises RequestError 404."""
        program = self.programs.get(name)
        if program is None:
            known = ", ".join(sorted(self.programs)) or "none"
            raise not_found(f"no workflow {name!r} is served; there are: {known}")
        return program

    def of(self, key: Key) -> list[ServedRun]:
        """The runs that a key has begun, the oldest first."""
        return [run for run in self._runs.values() if run.key.digest == key.digest]

    def find(self, run_id: str, key: Key) -> ServedRun:
        """A run that the key has begun. Raises RequestError 404, also for another's."""
        run = self._runs.get(run_id)
        if run is None or run.key.digest != key.digest:
            raise not_found(f"there is no run {run_id!r}")
        return run

    def begin(
        self, name: str, inputs: Mapping[str, JsonValue], seed: int | None, key: Key
    ) -> ServedRun:
        """Begin a run, which goes on whoever listens.

        Raises RequestError 404, and 400 for inputs that do not fit; WorkflowError WF31x for
        secrets; EngineError EN7xx where it cannot be written down.
        """
        program = self.program(name)
        values = _resolved(program, inputs)
        secrets_of(program, values)
        run_seed = drawn_seed() if seed is None else seed
        run_id = new_run_id()
        journal = None if self._place is None else self._enter(program, values, run_seed, run_id)
        run = ServedRun(run_id, name, key)
        self._forget_ended()
        self._runs[run_id] = run
        self._tasks.start_soon(self._drive, run, program, values, run_seed, journal)
        return run

    def cancel_all(self) -> None:
        """End all runs early."""
        for run in self._runs.values():
            if run.status == "running":
                run.cancel()

    async def cut(self) -> None:
        """End all runs early, and return when they have: with a journal, each can be resumed."""
        self.cancel_all()
        await self.wait_over()

    async def wait_over(self) -> None:
        """Return when no run goes on."""
        for run in list(self._runs.values()):
            await run.wait_over()

    def _enter(
        self, program: Program, values: Mapping[str, JsonValue], seed: int, run_id: str
    ) -> RunJournal:
        assert self._place is not None, "asked for where there is a journal"
        begun = RunBegun(
            program.name,
            str(Path(program.file).absolute()),
            values,
            seed,
            definitions_of(program),
            self._place.options,
            time.time(),
        )
        return RunJournal.begin(self._place.writer, run_id, begun)

    async def _drive(
        self,
        run: ServedRun,
        program: Program,
        values: Mapping[str, JsonValue],
        seed: int,
        journal: RunJournal | None,
    ) -> None:
        status: RunStatus = "failed"
        control = run.control = Control(run.cancel)
        try:
            async with (
                nullcontext() if journal is None else _ordered(journal, control),
                start(
                    program,
                    values,
                    control.around(self._backend_of(run.key)),
                    seed=seed,
                    asker=control.ask,
                    journal=journal,
                    tool_times=self._tool_times,
                ) as handle,
            ):
                run.let_cancel(handle.cancel)
                control.show(handle, self._backend_of(run.key).statistics)
                async for event in handle.events():
                    run.tell(event_as_json(event))
                    match event.fact:
                        case RunFinished():
                            status = "done"
                        case RunFailed():
                            status = "failed"
                        case RunCancelled():
                            status = "cancelled"
                        case _:
                            pass
        except FlowForgeError as error:
            # It never began, as where a tool cannot be loaded: whoever follows it must hear of it.
            _logger.error("run %s failed: %s", run.run_id, error.message)
            run.failure = failure_of(error).body()
        finally:
            run.end(status)

    def _forget_ended(self) -> None:
        ended = [run_id for run_id, run in self._runs.items() if run.status != "running"]
        for run_id in ended[: max(0, len(ended) - _MOST_ENDED + 1)]:
            del self._runs[run_id]


def _resolved(program: Program, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        return resolve_inputs(program, given)
    except WorkflowError as error:
        wrong = error.errors if isinstance(error, WrongInputsError) else (error,)
        raise bad_request("; ".join(map(_told, wrong)), "inputs", error.code) from error


def _told(error: WorkflowError) -> str:
    # What helps on a command line is not what helps a client.
    helps = {"WF301": 'give it in the body, under "inputs"', "WF302": error.help}
    help = helps.get(error.code)
    return error.message if help is None else f"{error.message}; {help}"


@asynccontextmanager
async def open_runs(
    programs: Sequence[Program],
    backend_of: Callable[[Key], Backend],
    place: RunPlace | None = None,
) -> AsyncGenerator[Runs]:
    """The runs of a server, as long as the block lasts; leaving it cancels those that go on.

    backend_of: what the runs of a key run on. place: None writes nothing down.
    """
    async with open_task_group() as tasks:
        runs = Runs(programs, backend_of, place, tasks)
        try:
            yield runs
        finally:
            runs.cancel_all()


@asynccontextmanager
async def _ordered(journal: RunJournal, control: Control) -> AsyncGenerator[None]:
    """As long as a run has its journal it takes orders from other processes, too."""
    with journal:
        async with control.served(socket_path(journal.path, journal.run_id)):
            yield
