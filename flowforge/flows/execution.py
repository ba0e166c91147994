"""A flow from its start to its terminal event, on asyncio and on trio."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

import anyio

from flowforge.errors import FlowForgeError
from flowforge.flows.memo import FlowMemo
from flowforge.flows.run import Run
from flowforge.flows.scopes import SCOPE, Scope
from flowforge.flows.session import FlowSession
from flowforge.flows.values import shown_value
from flowforge.runtime.clock import MonotonicClock
from flowforge.runtime.commands import Broken, Succeeded
from flowforge.runtime.events import RunCancelled, RunFailed, RunFinished, RunStarted
from flowforge.runtime.failures import failure_event
from flowforge.runtime.people import nobody
from flowforge.runtime.run import RunCancelledError, RunFailedError
from flowforge.runtime.run_secrets import masking
from flowforge.runtime.seeds import drawn_seed
from flowforge.runtime.state import Failure
from flowforge.runtime.stream import MAX_WAITING, EventStream
from flowforge.secrets.secret_box import BOX, SecretBox
from flowforge.task_groups import open_task_group

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from flowforge.backends.protocol import Backend
    from flowforge.flows.flow import Flow
    from flowforge.language.program import JsonValue
    from flowforge.runtime.clock import Clock
    from flowforge.runtime.commands import Outcome
    from flowforge.runtime.events import Accounting, Fact
    from flowforge.runtime.people import Asker
    from flowforge.runtime.run_journal import RunJournal
    from flowforge.runtime.stream import EventReader

P = ParamSpec("P")
T = TypeVar("T")


class FlowHandle(Generic[T]):
    """A flow in progress, as its reader sees it; a `RunHandle`."""

    def __init__(self, execution: _Execution[P, T]) -> None:
        self._execution = execution

    def events(self, *, max_waiting: int = MAX_WAITING) -> EventReader:
        """See `RunHandle.events`."""
        return self._execution.session.stream.reader(max_waiting=max_waiting)

    @property
    def elapsed_s(self) -> float:
        """See `RunHandle.elapsed_s`."""
        return self._execution.session.stream.elapsed_s

    async def result(self) -> T:
        """See `RunHandle.result`."""
        return await self._execution.result()

    def cancel_step(self, path: str) -> None:
        """See `RunHandle.cancel_step`; of a branch, what runs in it now."""
        self._execution.session.running.cancel(path)

    def cancel(self) -> None:
        """See `RunHandle.cancel`."""
        self._execution.scope.cancel()


@asynccontextmanager
async def start_flow(
    flow: Flow[P, T],
    inputs: Mapping[str, object],
    backend: Backend,
    *,
    clock: Clock | None = None,
    seed: int | None = None,
    asker: Asker | None = None,
    journal: RunJournal | None = None,
) -> AsyncGenerator[FlowHandle[T]]:
    """Start a flow, which goes on beside the block.

    Leaving the block cancels what still runs and returns when every conversation is closed.
    inputs: as `Flow.resolve_inputs` gives them. clock, seed, asker, journal: as for
    `runtime.run.start`; a flow that goes on runs its function again and takes over what was done.
    Raises WorkflowError WF31x for secrets that the environment lacks; nothing has run then.
    """
    clock = clock or MonotonicClock()
    if journal is not None and journal.seed is not None:
        seed = journal.seed
    seed = drawn_seed() if seed is None else seed
    memo = None if journal is None else FlowMemo(journal)
    secrets = secrets_of_flow(flow, inputs)
    tap, archive = (None, None) if memo is None else (memo.tap, memo.archive)
    stream = EventStream(clock.now, tap, masking(secrets), archive)
    session = FlowSession(backend, stream, seed, clock, asker or nobody, memo, secrets)
    execution = _Execution(flow, inputs, session)
    async with open_task_group() as tasks:
        session.servers.serve_in(tasks)
        tasks.start_soon(execution.drive)
        try:
            yield FlowHandle(execution)
        finally:
            execution.scope.cancel()


def secrets_of_flow(flow: Flow[P, T], inputs: Mapping[str, object]) -> SecretBox:
    """The secrets that a flow declares. Raises WorkflowError WF310, WF311, WF313."""
    box = SecretBox.read(flow.secrets)
    box.require_absent({name: shown_value(value) for name, value in inputs.items()})
    return box


class _Execution(Generic[P, T]):
    """Calls the function of a flow and tells how it ended."""

    def __init__(
        self, flow: Flow[P, T], inputs: Mapping[str, object], session: FlowSession
    ) -> None:
        self.session = session
        self.scope: anyio.CancelScope = anyio.CancelScope()
        self._flow = flow
        self._inputs = inputs
        self._ended = anyio.Event()
        self._values: list[T] = []
        self._failures: tuple[Failure, ...] = ()

    async def drive(self) -> None:
        """Run to the end; whatever happens, conversations are closed and the stream is ended."""
        session, flow = self.session, self._flow
        inputs = {name: shown_value(value) for name, value in self._inputs.items()}
        SCOPE.set(Scope())
        BOX.set(session.secrets)
        try:
            with self.scope:
                try:
                    resumed = None if session.memo is None else await session.memo.take_over()
                    session.stream.emit(RunStarted(flow.name, inputs, session.seed))
                    if resumed is not None:
                        session.stream.emit(resumed)
                    self._values.append(await flow.call(Run(session), self._inputs))
                except Exception as error:
                    self._failures = session.log.failures(error, otherwise=flow.name)
                    for failure in self._failures:
                        session.secrets.mask_error(failure.error)
        finally:
            with anyio.CancelScope(shield=True):
                await session.close_all()
                await self._end()

    async def result(self) -> T:
        """What the flow returned. Raises RunFailedError, or RunCancelledError after a cancel."""
        await self._ended.wait()
        if self._failures:
            raise RunFailedError(self._failures) from self._failures[0].error
        if not self._values:
            raise RunCancelledError
        return self._values[0]

    async def _end(self) -> None:
        session = self.session
        accounting = session.accounting()
        self._failures = (*self._failures, *session.close_failures)
        if session.memo is not None:
            await self._enter_end(session.memo, accounting)
        session.stream.emit(self._terminal_fact(accounting))
        self._ended.set()

    async def _enter_end(self, memo: FlowMemo, accounting: Accounting) -> None:
        """Write the end down; where that fails the run is failed, and can be resumed."""
        memo.tap(self.session.stream.next_event(self._terminal_fact(accounting)))
        memo.is_over = True
        try:
            await memo.end(self._outcome())
        except FlowForgeError as error:
            self._failures = (*self._failures, Failure("run", error))

    def _outcome(self) -> Outcome | None:
        if self._failures:
            return Broken(self._failures)
        return Succeeded(self._outputs()) if self._values else None

    def _terminal_fact(self, accounting: Accounting) -> Fact:
        if self._failures:
            return RunFailed(tuple(map(failure_event, self._failures)), accounting)
        if self._values:
            return RunFinished(self._outputs(), accounting)
        return RunCancelled(accounting)

    def _outputs(self) -> dict[str, JsonValue]:
        return {"result": self.session.secrets.masked_value(shown_value(self._values[0]))}
