"""The shell of a run: carries out what the core decides, in one task group, on asyncio and on trio.

    async with start(program, inputs, backend) as run:
        async for event in run.events():
            ...
        outputs = await run.result()

Leaving the block cancels what is still running and returns when every conversation is closed.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, assert_never

import anyio

from flowforge.backends.protocol import BackendStatistics, GenerationDone, TextDelta
from flowforge.errors import FlowForgeError, InternalError
from flowforge.runtime.accounting import AccountBook
from flowforge.runtime.commands import (
    Answered,
    Begin,
    Broken,
    Cancelled,
    CancelRun,
    Failed,
    Opened,
    ReleaseConversation,
    StartGeneration,
    StopGeneration,
    Stopped,
    Succeeded,
)
from flowforge.runtime.core import advance, new_state
from flowforge.runtime.events import RunCancelled, RunFailed, RunFinished, StepFailed, StepText
from flowforge.runtime.state import Failure
from flowforge.runtime.stream import MAX_WAITING, EventStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from anyio.abc import TaskGroup

    from flowforge.backends.protocol import Backend, Conversation
    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.commands import Command, Outcome, Report
    from flowforge.runtime.stream import EventReader
    from flowforge.runtime.verbs.rules import Validator

_MAX_REPORTS = 64
"""Reports that may wait for the core; a generation that ends meanwhile waits to say so."""


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
    clock: Callable[[], float] = time.monotonic,
    validate: Validator | None = None,
) -> AsyncGenerator[Run]:
    """Start a run, which goes on beside the block.

    inputs: complete and valid, as `resolve_inputs` gives them. clock: seconds, never backwards.
    validate: parses and validates answers under a JSON Schema; `grammars.validate_json` if None.
    """
    shell = _Shell(program, inputs, backend, clock, validate or _validate_json)
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
    """Owns the conversations and tasks of one run."""

    def __init__(
        self,
        program: Program,
        inputs: Mapping[str, JsonValue],
        backend: Backend,
        clock: Callable[[], float],
        validate: Validator,
    ) -> None:
        self.stream = EventStream(clock)
        self.ended = anyio.Event()
        self.cancel_requested = anyio.Event()
        self.outcome: Outcome | None = None
        self._backend = backend
        self._state = new_state(program, inputs, validate)
        self._book = AccountBook()
        self._conversations: dict[str, Conversation] = {}
        self._close_failures: list[Failure] = []
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._send, self._receive = anyio.create_memory_object_stream["Report"](_MAX_REPORTS)

    async def drive(self) -> None:
        """Run to the end; whatever happens, conversations are closed and the stream is ended."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_for_cancel)
                try:
                    await self._decide(tasks)
                except Exception as error:
                    self.outcome = Broken((Failure("run", _as_flowforge_error(error)),))
                tasks.cancel_scope.cancel()
        finally:
            self._send.close()
            self._receive.close()
            if self.outcome is None:
                self._wind_down()
            with anyio.CancelScope(shield=True):
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
            case StartGeneration():
                self._scopes[command.path] = anyio.CancelScope()
                tasks.start_soon(self._generate, command)
            case StopGeneration(path):
                # It may have ended already, with its report still on the way.
                if path in self._scopes:
                    self._scopes[path].cancel()
            case ReleaseConversation(path):
                tasks.start_soon(self._close, path)
            case _:
                assert_never(command)

    async def _watch_for_cancel(self) -> None:
        await self.cancel_requested.wait()
        await self._send.send(CancelRun())

    def _wind_down(self) -> None:
        """The host was cancelled and took the tasks along: tell the core, which tells readers."""
        reports: list[Report] = [CancelRun(), *map(Stopped, sorted(self._state.in_flight))]
        for report in reports:
            decision = advance(self._state, report)
            for fact in decision.facts:
                self.stream.emit(fact)
            self.outcome = decision.outcome

    # -- acting -----------------------------------------------------------------------------------

    async def _generate(self, command: StartGeneration) -> None:
        report: Report = Stopped(command.path)
        with self._scopes[command.path]:
            try:
                report = Answered(command.path, await self._answer(command))
            except Exception as error:
                report = Failed(command.path, _as_flowforge_error(error))
        del self._scopes[command.path]
        await self._send.send(report)

    async def _answer(self, command: StartGeneration) -> GenerationDone:
        if command.continues is None:
            conversation = await self._backend.open(system=command.system)
        else:
            conversation = await self._conversations[command.continues].fork()
        self._conversations[command.path] = conversation
        await self._send.send(Opened(command.path))
        if command.user is not None:
            conversation.add_user(command.user)
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
        if done is None:
            raise InternalError(
                "IN507", f"backend {self._backend.name!r} ended a generation without its result"
            )
        self._book.enter(done)
        return done

    async def _close(self, path: str) -> None:
        conversation = self._conversations.pop(path, None)
        if conversation is None:
            return
        try:
            with anyio.CancelScope(shield=True):
                await conversation.close()
        except Exception as error:
            self._close_failures.append(Failure(path, _as_flowforge_error(error)))

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
            self._close_failures.append(Failure("run", _as_flowforge_error(error)))
        if self._close_failures:
            earlier = self.outcome.failures if isinstance(self.outcome, Broken) else ()
            self.outcome = Broken((*earlier, *self._close_failures))
        accounting = self._book.total(statistics, self.stream.elapsed_s)
        match self.outcome:
            case Succeeded(outputs):
                self.stream.emit(RunFinished(outputs, accounting))
            case Broken(failures):
                self.stream.emit(RunFailed(tuple(map(_step_failed, failures)), accounting))
            case Cancelled() | None:
                self.stream.emit(RunCancelled(accounting))
        self.ended.set()


def _step_failed(failure: Failure) -> StepFailed:
    error = failure.error
    return StepFailed(failure.path, error.code, error.message, error.help)


def _as_flowforge_error(error: Exception) -> FlowForgeError:
    if isinstance(error, FlowForgeError):
        return error
    wrapped = InternalError(
        "IN508",
        f"{type(error).__name__}: {error}",
        help="this is a fault in FlowForge or in its backend; --traceback shows where",
    )
    wrapped.__cause__ = error
    return wrapped
