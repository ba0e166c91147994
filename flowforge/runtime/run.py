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
from typing import TYPE_CHECKING, assert_never

import anyio

from flowforge.backends.protocol import BackendStatistics, GenerationDone, TextDelta
from flowforge.errors import FlowForgeError, InternalError
from flowforge.runtime.accounting import AccountBook
from flowforge.runtime.clock import MonotonicClock
from flowforge.runtime.commands import (
    Answered,
    Begin,
    Broken,
    Cancelled,
    CancelRun,
    Failed,
    Opened,
    ReleaseConversation,
    Returned,
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
from flowforge.runtime.events import RunCancelled, RunFailed, RunFinished, StepText
from flowforge.runtime.failures import as_flowforge_error, failure_event
from flowforge.runtime.graph import programs_of
from flowforge.runtime.people import nobody
from flowforge.runtime.seeds import drawn_seed
from flowforge.runtime.state import Failure
from flowforge.runtime.stream import MAX_WAITING, EventStream
from flowforge.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from anyio.abc import TaskGroup

    from flowforge.backends.protocol import Backend, Conversation
    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.clock import Clock
    from flowforge.runtime.commands import Command, Outcome, Report
    from flowforge.runtime.people import Asker
    from flowforge.runtime.state import RunState
    from flowforge.runtime.stream import EventReader
    from flowforge.runtime.verbs.rules import Validator


class RunFailedError(FlowForgeError):
    """Steps failed. failures: all of them, each with its path, in the order they happened."""

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
    """The run was cancelled and has no outputs."""

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
) -> AsyncGenerator[Run]:
    """Start a run, which goes on beside the block.

    inputs: complete and valid, as `resolve_inputs` gives them. validate: parses and validates
    answers under a JSON Schema; `grammars.validate_json` if None. seed: of everything random in the
    run; one is drawn and told by `RunStarted` if None. asker: who answers `ask`; nobody if None.
    Raises ToolError TL1xx when a tool of the program cannot be loaded; nothing has run then.
    """
    run_seed = drawn_seed() if seed is None else seed
    state = new_state(program, inputs, validate or _validate_json, seed=run_seed)
    toolbox = Toolbox(programs_of(program))
    shell = _Shell(state, backend, clock or MonotonicClock(), asker or nobody, toolbox)
    body_error: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shell.drive)
        try:
            yield Run(shell)
        except Exception as error:
            # A task group would wrap what the block raised in an ExceptionGroup.
            body_error = error
        finally:
            shell.cancel_requested.set()
    if body_error is not None:
        raise body_error


def _validate_json(text: str, schema: Mapping[str, JsonValue]) -> JsonValue:
    from flowforge.grammars import validate_json

    return validate_json(text, schema)


class _Shell:
    """Owns the conversations, works and timers of one run."""

    def __init__(
        self, state: RunState, backend: Backend, clock: Clock, asker: Asker, toolbox: Toolbox
    ) -> None:
        self.stream = EventStream(clock.now)
        self.ended = anyio.Event()
        self.cancel_requested = anyio.Event()
        self.outcome: Outcome | None = None
        self._backend = backend
        self._state = state
        self._clock = clock
        self._asker = asker
        self._toolbox = toolbox
        self._book = AccountBook()
        self._conversations: dict[str, Conversation] = {}
        self._close_failures: list[Failure] = []
        self._scopes: dict[str, anyio.CancelScope] = {}
        # Bounded by what is in flight: a work reports twice at most, a timer once.
        self._send, self._receive = anyio.create_memory_object_stream["Report"](math.inf)

    async def drive(self) -> None:
        """Run to the end; whatever happens, conversations are closed and the stream is ended."""
        with self._send, self._receive:
            async with anyio.create_task_group() as watching:
                watching.start_soon(self._watch_for_cancel)
                # A host that is cancelled still waits for memory to come back and for `finally`.
                with anyio.CancelScope(shield=True):
                    await self._run_to_the_end()
                watching.cancel_scope.cancel()

    async def _run_to_the_end(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                try:
                    await self._decide(tasks)
                except Exception as error:
                    self.outcome = Broken((Failure("run", as_flowforge_error(error)),))
                    tasks.cancel_scope.cancel()
        finally:
            await self._close_all()
            self._end()

    # -- deciding ---------------------------------------------------------------------------------

    async def _decide(self, tasks: TaskGroup) -> None:
        self._carry_out(Begin(), tasks)
        while self.outcome is None:
            self._carry_out(await self._receive.receive(), tasks)

    def _carry_out(self, report: Report, tasks: TaskGroup) -> None:
        decision = advance(self._state, report)
        for fact in decision.facts:
            self.stream.emit(fact)
        for command in decision.commands:
            self._act(command, tasks)
        self.outcome = decision.outcome

    def _act(self, command: Command, tasks: TaskGroup) -> None:
        match command:
            case StartGeneration(path):
                self._start(path, lambda: self._answer(command), tasks)
            case StartCall(path):
                self._start(path, lambda: self._call(command), tasks)
            case StartQuestion(path):
                self._start(path, lambda: self._ask(command), tasks)
            case StartTimer(timer, delay_s):
                self._scopes[timer] = anyio.CancelScope()
                tasks.start_soon(self._count_down, timer, delay_s)
            case Stop(key) | StopTimer(key):
                # It may have ended already, with its report still on the way.
                if key in self._scopes:
                    self._scopes[key].cancel()
            case ReleaseConversation(path):
                tasks.start_soon(self._close, path)
            case _:
                assert_never(command)

    async def _watch_for_cancel(self) -> None:
        try:
            await self.cancel_requested.wait()
        finally:
            self._send.send_nowait(CancelRun())

    # -- acting -----------------------------------------------------------------------------------

    def _start(self, path: str, act: Callable[[], Awaitable[Report]], tasks: TaskGroup) -> None:
        self._scopes[path] = anyio.CancelScope()
        tasks.start_soon(self._work, path, act)

    async def _work(self, path: str, act: Callable[[], Awaitable[Report]]) -> None:
        report: Report = Stopped(path)
        with self._scopes[path]:
            try:
                report = await act()
            except Exception as error:
                report = Failed(path, as_flowforge_error(error))
        del self._scopes[path]
        self._send.send_nowait(report)

    async def _count_down(self, timer: str, delay_s: float) -> None:
        with self._scopes[timer] as scope:
            await self._clock.sleep(delay_s)
            self._send.send_nowait(TimerFired(timer))
        if self._scopes.get(timer) is scope:
            del self._scopes[timer]

    async def _call(self, command: StartCall) -> Report:
        return Returned(
            command.path, await self._toolbox.call(command.tool, command.arguments, command.path)
        )

    async def _ask(self, command: StartQuestion) -> Report:
        return Returned(command.path, await self._asker(command))

    async def _answer(self, command: StartGeneration) -> Report:
        conversation = await self._conversation(command)
        for turn in command.said:
            if turn.role == "user":
                conversation.add_user(turn.text)
            else:
                conversation.add_assistant(turn.text)
        items = conversation.generate(command.request)
        done: GenerationDone | None = None
        try:
            async for item in items:
                if isinstance(item, TextDelta):
                    self.stream.emit(StepText(command.path, item.text, item.num_tokens))
                else:
                    done = item
        finally:
            with anyio.CancelScope(shield=True):
                await items.aclose()
            cut = conversation.take_cut()
            if cut is not None:
                self._book.enter_cut(cut)
        if done is None:
            raise InternalError(
                "IN507", f"backend {self._backend.name!r} ended a generation without its result"
            )
        self._book.enter(done)
        return Answered(command.path, done)

    async def _conversation(self, command: StartGeneration) -> Conversation:
        path, continues = command.path, command.continues
        if continues == path:
            return self._conversations[path]
        if continues is None:
            conversation = await self._backend.open(system=command.system)
        else:
            conversation = await self._conversations[continues].fork()
        self._conversations[path] = conversation
        self._send.send_nowait(Opened(path))
        return conversation

    async def _close(self, path: str) -> None:
        conversation = self._conversations.pop(path, None)
        if conversation is None:
            return
        try:
            with anyio.CancelScope(shield=True):
                await conversation.close()
        except Exception as error:
            self._close_failures.append(Failure(path, as_flowforge_error(error)))

    async def _close_all(self) -> None:
        for path in list(self._conversations):
            await self._close(path)

    # -- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        try:
            statistics = self._backend.statistics()
        except Exception as error:
            # Whoever waits for the end must get one, also from a backend that is gone.
            statistics = BackendStatistics()
            self._close_failures.append(Failure("run", as_flowforge_error(error)))
        if self._close_failures:
            earlier = self.outcome.failures if isinstance(self.outcome, Broken) else ()
            self.outcome = Broken((*earlier, *self._close_failures))
        accounting = self._book.total(statistics, self.stream.elapsed_s)
        match self.outcome:
            case Succeeded(outputs):
                self.stream.emit(RunFinished(outputs, accounting))
            case Broken(failures):
                self.stream.emit(RunFailed(tuple(map(failure_event, failures)), accounting))
            case Cancelled() | None:
                self.stream.emit(RunCancelled(accounting))
        self.ended.set()
