"""The shell of a run: carries out what the core decides, in one task group, on asyncio and on trio.

    async with start(program, inputs, backend) as run:
        async for event in run.events():
            ...
        outputs = await run.result()

Leaving the block cancels what is still running and returns when every conversation is closed and
every `finally` is done. So does a cancel of the host, which the run is shielded from until then.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

import anyio

from flowforge.backends.protocol import BackendStatistics
from flowforge.errors import FlowForgeError
from flowforge.language.room import require_room
from flowforge.runtime.cancelling import name_to_cancel
from flowforge.runtime.clock import MonotonicClock
from flowforge.runtime.commands import (
    Begin,
    Broken,
    Cancelled,
    CancelRun,
    CancelStep,
    ExpectPrompt,
    ExpectUse,
    Foresee,
    GiveUp,
    Noted,
    Prepare,
    ReleaseConversation,
    StartCall,
    StartGeneration,
    StartQuestion,
    StartTimer,
    Stop,
    Stopped,
    StopTimer,
    Succeeded,
    TimerFired,
)
from flowforge.runtime.core import advance, new_state
from flowforge.runtime.events import RunCancelled, RunFailed, RunFinished
from flowforge.runtime.failures import as_flowforge_error, failure_event
from flowforge.runtime.graph import programs_of
from flowforge.runtime.page_samples import PageSampler
from flowforge.runtime.people import nobody
from flowforge.runtime.policy import WHOLE_POLICY
from flowforge.runtime.run_secrets import masking, secrets_of
from flowforge.runtime.seeds import drawn_seed
from flowforge.runtime.state import Failure
from flowforge.runtime.stream import MAX_WAITING, EventStream
from flowforge.runtime.tool_times import ToolTimes
from flowforge.runtime.works import Surroundings, Works
from flowforge.secrets.secret_box import BOX
from flowforge.task_groups import open_task_group
from flowforge.tools.toolbox import open_toolbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from anyio.abc import TaskGroup

    from flowforge.backends.protocol import Backend
    from flowforge.journal.records import Entry
    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.clock import Clock
    from flowforge.runtime.commands import Command, Outcome, Report
    from flowforge.runtime.events import Accounting, Fact
    from flowforge.runtime.people import Asker
    from flowforge.runtime.policy import RunPolicy
    from flowforge.runtime.run_journal import RunJournal
    from flowforge.runtime.state import RunState
    from flowforge.runtime.stream import EventReader
    from flowforge.runtime.verbs.rules import Validator


class RunFailedError(FlowForgeError):
    """Steps of a run failed.

    failures: all of them, each with its path and error, in the order they happened. location, help:
    of the first.
    """

    def __init__(self, failures: tuple[Failure, ...]) -> None:
        first = failures[0]
        others = f", and {len(failures) - 1} more failed" if len(failures) > 1 else ""
        super().__init__(
            "WF500",
            f"{first.path!r} failed: {first.error.message} [{first.error.code}]{others}",
            location=first.error.location,
            help=first.error.help,
        )
        self.failures: tuple[Failure, ...] = failures


class RunCancelledError(FlowForgeError):
    """The run was cancelled, by its handle or from outside, and has no outputs."""

    def __init__(self) -> None:
        super().__init__("WF510", "the run was cancelled before it had its outputs")


class Run:
    """A run in progress, as its reader sees it; made by `start`."""

    def __init__(self, shell: _Shell) -> None:
        self._shell = shell

    def events(self, *, max_waiting: int = MAX_WAITING) -> EventReader:
        """All events of the run, from the first to the terminal one; see `stream` for slow readers.

        max_waiting: events that may wait one by one before texts are coalesced.
        """
        return self._shell.stream.reader(max_waiting=max_waiting)

    @property
    def elapsed_s(self) -> float:
        """See `RunHandle.elapsed_s`."""
        return self._shell.stream.elapsed_s

    async def result(self) -> Mapping[str, JsonValue]:
        """Wait for the outputs. Raises RunFailedError, or RunCancelledError after a cancel."""
        await self._shell.ended.wait()
        match self._shell.outcome:
            case Succeeded(outputs):
                return outputs
            case Broken(failures):
                raise RunFailedError(failures) from failures[0].error
            case Cancelled() | None:
                raise RunCancelledError

    def cancel_step(self, path: str) -> None:
        """See `RunHandle`."""
        self._shell.cancel_step(path)

    def cancel(self) -> None:
        """End the run early; its terminal event follows when every conversation is closed."""
        self._shell.cancel_requested.set()


@asynccontextmanager
async def start(
    program: Program,
    inputs: Mapping[str, JsonValue],
    backend: Backend,
    *,
    clock: Clock | None = None,
    validate: Validator | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    journal: RunJournal | None = None,
    policy: RunPolicy = WHOLE_POLICY,
    tool_times: ToolTimes | None = None,
) -> AsyncGenerator[Run]:
    """Start a run, which goes on beside the block.

    inputs: complete and valid, as `resolve_inputs` gives them. validate: parses and validates
    answers under a JSON Schema; `grammars.validate_json` if None. seed: of everything random in the
    run; one is drawn and told by `RunStarted` if None. asker: who answers `ask`; nobody if None.
    journal: where the run is written down as it goes, or goes on from; closed with the run. policy:
    what is made of what the program says of steps to come. tool_times: what is known of how long
    tools take, where runs share that.
    Raises ToolError TL1xx when a tool of the program cannot be loaded, WorkflowError WF516 for a
    step that asks for more tokens than the backend's model has room for, WF31x for secrets that
    the environment lacks; nothing has run then.
    """
    if journal is not None and journal.seed is not None:
        seed = journal.seed
    run_seed = drawn_seed() if seed is None else seed
    if backend.capacity is not None:
        require_room(program, backend.capacity)
    secrets = secrets_of(program, inputs)
    async with open_toolbox(programs_of(program), secrets) as toolbox:
        state = new_state(
            program,
            inputs,
            validate or _validate_json,
            seed=run_seed,
            meter=backend.token_meter,
            offered=toolbox.offered,
            policy=policy,
        )
        surroundings = Surroundings(
            backend, asker or nobody, toolbox, secrets, tool_times or ToolTimes()
        )
        shell = _Shell(state, surroundings, clock or MonotonicClock(), journal)
        async with open_task_group() as tasks:
            tasks.start_soon(shell.drive)
            try:
                yield Run(shell)
            finally:
                shell.cancel_requested.set()


def _validate_json(text: str, schema: Mapping[str, JsonValue]) -> JsonValue:
    from flowforge.grammars import validate_json

    return validate_json(text, schema)


class _Shell:
    """Drives one run.

    It takes reports to the core, and what the core decides to the journal, to the readers and to
    the works, in this order.
    """

    def __init__(
        self,
        state: RunState,
        surroundings: Surroundings,
        clock: Clock,
        journal: RunJournal | None,
    ) -> None:
        archive = None if journal is None else journal.recorder.archive
        self.stream = EventStream(clock.now, mask=masking(surroundings.secrets), archive=archive)
        self.ended = anyio.Event()
        self.cancel_requested = anyio.Event()
        self.outcome: Outcome | None = None
        self._backend = surroundings.backend
        self._secrets = surroundings.secrets
        self._state = state
        self._pages = PageSampler(surroundings.backend)
        self._clock = clock
        self._journal = journal
        self._timers: dict[str, anyio.CancelScope] = {}
        # Bounded by what is in flight: a work reports twice at most, and the elements of its list.
        self._send, self._receive = anyio.create_memory_object_stream["Report | Noted"](math.inf)
        self._works = Works(surroundings, self.stream, self._send.send_nowait, journal)

    async def drive(self) -> None:
        """Run to the end; whatever happens, conversations are closed and the stream is ended."""
        BOX.set(self._secrets)
        with self._send, self._receive:
            async with anyio.create_task_group() as watching:
                watching.start_soon(self._watch_for_cancel)
                # A host that is cancelled still waits for memory to come back and for `finally`.
                with anyio.CancelScope(shield=True):
                    await self._run_to_the_end()
                watching.cancel_scope.cancel()

    def cancel_step(self, path: str) -> None:
        """Report an order to cancel what runs under a path. Raises WorkflowError WF518."""
        name = name_to_cancel(self._state, path)
        self._send.send_nowait(CancelStep(name))

    async def _run_to_the_end(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                try:
                    await self._decide(tasks)
                    self._works.stop_preparing()
                except Exception as error:
                    failure = as_flowforge_error(error)
                    self._secrets.mask_error(failure)
                    self.outcome = Broken((Failure("run", failure),))
                    tasks.cancel_scope.cancel()
        finally:
            await self._works.release_all()
            await self._tell_late()
            await self._end()

    # -- deciding ---------------------------------------------------------------------------------

    async def _decide(self, tasks: TaskGroup) -> None:
        if self._journal is None or self._journal.row is None:
            await self._carry_out([Begin()], tasks)
        else:
            await self._go_on(self._journal, tasks)
        while self.outcome is None:
            reports = [await self._receive.receive()]
            if self._journal is not None:
                # What ended while the last commit was under way is committed together.
                reports += self._waiting_reports()
            await self._carry_out(reports, tasks)

    def _waiting_reports(self) -> list[Report | Noted]:
        num_waiting = self._receive.statistics().current_buffer_used
        return [self._receive.receive_nowait() for _ in range(num_waiting)]

    async def _carry_out(self, received: Sequence[Report | Noted], tasks: TaskGroup) -> None:
        facts: list[Fact] = [one.fact for one in received if isinstance(one, Noted)]
        reports = [one for one in received if not isinstance(one, Noted)]
        commands: list[Command] = []
        for report in reports:
            decision = advance(self._state, report)
            facts += decision.facts
            commands += decision.commands
            self.outcome = self.outcome or decision.outcome
        if facts:
            facts += self._pages.look(self.stream.elapsed_s)
        await self._tell(facts, [] if self._journal is None else self._entries(reports, commands))
        for command in commands:
            self._act(command, tasks)

    def _entries(self, reports: list[Report], commands: list[Command]) -> list[Entry]:
        assert self._journal is not None
        recorder = self._journal.recorder
        ends = [end for report in reports if (end := recorder.ended(report)) is not None]
        return [*ends, *recorder.started(commands)]

    async def _tell(self, facts: list[Fact], entries: list[Entry]) -> None:
        """Hand facts out, once they and the entries are on the disk."""
        if self._journal is None:
            for fact in facts:
                self.stream.emit(fact)
            return
        recorder = self._journal.recorder
        events = self.stream.reserve(facts)
        try:
            await recorder.commit([*entries, *map(recorder.told, events)])
        except BaseException:
            self.stream.publish([])
            raise
        self.stream.publish(events)

    async def _go_on(self, journal: RunJournal, tasks: TaskGroup) -> None:
        """Begin where an earlier process stopped."""
        restored = await journal.restore(self._state)
        told = restored.replayed.told
        self.stream.go_on(told.next_seq, told.elapsed_s)
        self.outcome = restored.replayed.outcome
        await self._tell(restored.fresh, restored.entries)
        for work in restored.replayed.works.values():
            if work.is_stopped:
                self._send.send_nowait(Stopped(work.command.path))
            else:
                self._act(work.command, tasks)
        for name, timer in restored.replayed.timers.items():
            # How long a try may take is its own time; what a person or a back-off waits for is the
            # world's, which went on.
            is_own = self._state.timers[name].purpose in {"timeout", "finally"}
            waited_s = 0.0 if is_own else max(0.0, journal.recorder.now() - timer.since)
            self._act(replace(timer.command, delay_s=timer.command.delay_s - waited_s), tasks)

    def _act(self, command: Command, tasks: TaskGroup) -> None:
        match command:
            case StartGeneration() | StartCall() | StartQuestion():
                self._works.start(command, tasks)
            case Foresee(generation):
                self._works.foresee(generation, tasks)
            case GiveUp(path):
                tasks.start_soon(self._works.give_up, path)
            case Prepare():
                self._works.prepare(command, tasks)
            case Stop(path):
                self._works.stop(path)
            case ExpectUse():
                self._works.expect_use(command)
            case ExpectPrompt():
                self._works.expect_prompt(command, tasks)
            case ReleaseConversation(path):
                tasks.start_soon(self._works.release, path)
            case StartTimer(timer, delay_s):
                self._timers[timer] = anyio.CancelScope()
                tasks.start_soon(self._count_down, timer, max(0.0, delay_s))
            case StopTimer(timer):
                if timer in self._timers:
                    self._timers[timer].cancel()
            case _:
                assert_never(command)

    async def _watch_for_cancel(self) -> None:
        try:
            await self.cancel_requested.wait()
        finally:
            self._send.send_nowait(CancelRun())

    async def _count_down(self, timer: str, delay_s: float) -> None:
        with self._timers[timer] as scope:
            await self._clock.sleep(delay_s)
            self._send.send_nowait(TimerFired(timer))
        if self._timers.get(timer) is scope:
            del self._timers[timer]

    # -- the end ----------------------------------------------------------------------------------

    async def _tell_late(self) -> None:
        """What was noted while conversations were closed."""
        late = [one.fact for one in self._waiting_reports() if isinstance(one, Noted)]
        try:
            await self._tell(late, [])
        except Exception as error:
            self._add_failures(Failure("run", as_flowforge_error(error)))

    async def _end(self) -> None:
        failures = self._works.close_failures
        try:
            statistics = self._backend.statistics()
        except Exception as error:
            # Whoever waits for the end must get one, also from a backend that is gone.
            statistics = BackendStatistics()
            failures.append(Failure("run", as_flowforge_error(error)))
        if failures:
            self._add_failures(*failures)
        accounting = self._works.book.total(statistics, self.stream.elapsed_s)
        if self._journal is not None:
            await self._enter_end(self._journal, accounting)
        self.stream.emit(_terminal_fact(self.outcome, accounting))
        self.ended.set()

    async def _enter_end(self, journal: RunJournal, accounting: Accounting) -> None:
        """Write the end down.

        Where that fails, the run is failed for its readers, and for its journal one that was cut
        and can be resumed.
        """
        recorder = journal.recorder
        event = self.stream.next_event(_terminal_fact(self.outcome, accounting))
        try:
            await recorder.commit([recorder.told(event), recorder.run_ended(self.outcome)])
        except Exception as error:
            self._add_failures(Failure("run", as_flowforge_error(error)))
        finally:
            journal.close()

    def _add_failures(self, *failures: Failure) -> None:
        earlier = self.outcome.failures if isinstance(self.outcome, Broken) else ()
        self.outcome = Broken((*earlier, *failures))


def _terminal_fact(outcome: Outcome | None, accounting: Accounting) -> Fact:
    match outcome:
        case Succeeded(outputs):
            return RunFinished(outputs, accounting)
        case Broken(failures):
            return RunFailed(tuple(map(failure_event, failures)), accounting)
        case Cancelled() | None:
            return RunCancelled(accounting)
