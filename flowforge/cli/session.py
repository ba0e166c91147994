"""One `flowforge run` from the opening of its backend to its exit code."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from flowforge.backends.hooks import hooked, load_hooks
from flowforge.backends.kept_prefixes import keep_prefixes
from flowforge.backends.page_maps import watched
from flowforge.cli.answers import asker_at
from flowforge.cli.backends import open_backend
from flowforge.cli.cache_notes import CacheTally
from flowforge.cli.download import DownloadProgress
from flowforge.cli.event_records import event_record, place_of
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import print_json_line, report_run_failure
from flowforge.cli.logs import open_log
from flowforge.cli.printing import print_note, print_text
from flowforge.cli.progress import Progress, choose_progress
from flowforge.control.desk import Control
from flowforge.control.orders import socket_path
from flowforge.journal.location import kv_folder_of
from flowforge.runtime.events import RunCancelled, RunFailed, RunFinished
from flowforge.runtime.people import PreparedAnswers
from flowforge.runtime.run import RunFailedError
from flowforge.task_groups import open_task_group
from flowforge.telemetry.export import provider_for
from flowforge.view.texts import accounting_line, outputs_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from datetime import date
    from pathlib import Path

    from opentelemetry.sdk.trace import TracerProvider

    from flowforge.cli.logs import LogOptions
    from flowforge.cli.options import Display
    from flowforge.cli.workflows import Launch
    from flowforge.engine.config import EngineConfig
    from flowforge.language.program import JsonValue
    from flowforge.runtime.caching import StepCache
    from flowforge.runtime.commands import StartQuestion
    from flowforge.runtime.events import Event, Fact
    from flowforge.runtime.handle import RunHandle
    from flowforge.runtime.people import Asker
    from flowforge.runtime.run_journal import RunJournal
    from flowforge.telemetry.run_log import RunLog

_FRAME_S = 0.1
_LONG_QUESTION_S = 10.0
"""A question that waits for so long may wait for days."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What the command line said about how to run and what to show.

    today: the day that chat templates print; None is this day. waits_for_answers: questions that
    no file answers wait for `flowforge answer`. explains_cache: what the step cache had is told.
    is_traced: also where no OTEL_* variable says so. tool_format: how models write tool calls; None
    is as their chat templates do. keeps_kv: at a pause or a long question, KV is written to disk.
    hooks: files of functions that see prompts and answers.
    """

    backend: str
    model: str | None
    answers: Mapping[str, str]
    display: Display = "auto"
    engine: EngineConfig | None = None
    today: date | None = None
    waits_for_answers: bool = False
    explains_cache: bool = False
    is_traced: bool = False
    tool_format: str | None = None
    log: LogOptions | None = None
    keeps_kv: bool = False
    hooks: tuple[str, ...] = ()

    @property
    def as_json(self) -> bool:
        """Whether stdout has events instead of the result."""
        return self.display == "json"

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is said but the result and what went wrong."""
        return self.display == "none"


class Session:
    """Runs a workflow once; the first signal cancels the run, the second ends the process."""

    def __init__(
        self,
        launch: Launch,
        options: SessionOptions,
        enter_journal: Callable[[], RunJournal] | None = None,
        journal_path: Path | None = None,
    ) -> None:
        """enter_journal: takes the run's place in its journal once its model is there.

        journal_path: of that journal, beside which KV is kept if the options say so.
        """
        self._journal_path = journal_path if options.keeps_kv else None
        self._keep: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        self._launch = launch
        self._enter_journal = enter_journal
        self._run_id: str | None = None
        self._place: dict[str, JsonValue] = {"pid": os.getpid()}
        self._options = options
        # Two that write to one stderr would be read by nobody.
        is_logged_there = options.log is not None and options.log.takes_stderr
        self._progress: Progress = choose_progress("none" if is_logged_there else options.display)
        self._log: RunLog | None = None
        self._first_seq: Callable[[], int] = lambda: 0
        self._run: RunHandle[object] | None = None
        self._cache: StepCache | None = None
        self._control = Control(self._cancel_run)
        self._provider: TracerProvider | None = None
        self._viewer_left = anyio.Event()
        self._signal_code: ExitCode | None = None
        self._signalled = anyio.Event()

    def run(self) -> ExitCode:
        """Block until the run has ended and its backend is closed.

        Raises EngineError EN801 or EN802 where the run cannot be traced as asked for, EN803 where
        it cannot be logged.
        """
        self._provider = provider_for(os.environ, is_asked_for=self._options.is_traced)
        with open_log(self._options.log) as self._log:
            return anyio.run(self._main)

    async def _main(self) -> ExitCode:
        code = ExitCode.DONE
        async with open_task_group() as tasks:
            try:
                with anyio.CancelScope() as scope:
                    tasks.start_soon(self._watch_signals, scope)
                    tasks.start_soon(self._draw_frames)
                    tasks.start_soon(self._keep_at_pauses)
                    code = await self._execute()
            finally:
                tasks.cancel_scope.cancel()
        if self._signal_code is None:
            return code
        if self._run is None:
            self._say("the run was cancelled before it began")
        return self._signal_code

    async def _execute(self) -> ExitCode:
        options = self._options
        hooks = load_hooks(options.hooks)
        with DownloadProgress(is_quiet=options.is_quiet or options.as_json) as download:
            async with open_backend(
                options.backend,
                options.model,
                download,
                options.engine,
                options.today,
                options.tool_format,
                None if self._journal_path is None else kv_folder_of(self._journal_path),
                self._launch.elsewhere,
            ) as backend:
                self._keep = partial(keep_prefixes, backend)
                journal = None if self._enter_journal is None else self._enter_journal()
                self._cache = None if journal is None else journal.cache
                if journal is not None:
                    self._first_seq = lambda: journal.first_seq
                asker = self._asker()
                async with (
                    watched(backend) as seen,
                    self._controlled(journal),
                    self._launch.begin(
                        hooked(self._control.around(seen), hooks), asker, journal
                    ) as run,
                    self._traced(run, journal),
                ):
                    self._run = run
                    self._control.show(run, seen.statistics)
                    await self._view(journal)
                    terminal = await self._follow(run)
                    return await self._conclude(run, terminal)

    def _asker(self) -> Asker:
        answers = self._options.answers
        if self._options.waits_for_answers:
            return PreparedAnswers(answers, self._keeping(self._control.ask))
        return PreparedAnswers(answers, self._keeping(self._control.or_ask(self._ask_here)))

    def _keeping(self, ask: Asker) -> Asker:
        """Ask, and when that takes long, keep what the run needs in order to go on elsewhere."""

        async def keep_later() -> None:
            await anyio.sleep(_LONG_QUESTION_S)
            await self._keep()

        async def asked(question: StartQuestion) -> str:
            async with open_task_group() as tasks:
                tasks.start_soon(keep_later)
                answer = await ask(question)
                tasks.cancel_scope.cancel()
            return answer

        return asked if self._options.keeps_kv else ask

    async def _keep_at_pauses(self) -> None:
        gate = self._control.gate
        while self._options.keeps_kv:
            await gate.wait_closed()
            await self._keep()
            await gate.pass_through()

    async def _ask_here(self, question: StartQuestion) -> str:
        """Ask at the terminal, once no viewer has it."""
        await self._viewer_left.wait()
        return await asker_at(self._progress)(question)

    async def _view(self, journal: RunJournal | None) -> None:
        """Let a viewer have the terminal until the user leaves it; the run goes on beside it."""
        if self._options.display == "tui" and journal is not None:
            from flowforge.cli.terminal import is_terminal, view_beside

            if is_terminal():
                arguments = [journal.run_id, "--journal", str(journal.path)]
                failure = await view_beside(arguments, self._signalled)
                if failure is not None:
                    self._say(str(failure))
            else:
                self._say("the viewer needs a terminal: showing lines")
        self._viewer_left.set()

    @asynccontextmanager
    async def _controlled(self, journal: RunJournal | None) -> AsyncGenerator[None]:
        """While the run has its journal it takes orders."""
        if journal is None:
            yield
            return
        path = socket_path(journal.path, journal.run_id)
        with journal:
            async with self._control.served(path):
                self._tell_run(journal)
                yield

    def _traced(
        self, run: RunHandle[object], journal: RunJournal | None
    ) -> AbstractAsyncContextManager[None]:
        if self._provider is None:
            return nullcontext()
        from flowforge.telemetry.tracing import traced

        if journal is None:
            return traced(run, self._provider, None, lambda: 0)
        return traced(run, self._provider, journal.run_id, lambda: journal.first_seq)

    def _cancel_run(self) -> None:
        if self._run is not None:
            self._run.cancel()

    def _tell_run(self, journal: RunJournal) -> None:
        """Somebody may connect from now on."""
        run_id = self._run_id = journal.run_id
        self._place = place_of(journal.path, run_id, os.getpid())
        # Whoever began it in the background waits for this line, however the run is shown.
        if self._options.waits_for_answers:
            print_note(f"run {run_id}")
        elif not self._options.as_json:
            self._say(f"run {run_id}")

    async def _follow(self, run: RunHandle[object]) -> Fact:
        """Show every event; returns the terminal fact."""
        event: Event | None = None
        with self._progress:
            async for event in run.events():
                if self._options.as_json:
                    print_json_line(event_record(event, self._place))
                self._progress.show(event)
                if self._log is not None and event.seq >= self._first_seq():
                    self._log.take(event, self._run_id)
        assert event is not None
        return event.fact

    async def _conclude(self, run: RunHandle[object], terminal: Fact) -> ExitCode:
        code = ExitCode.DONE
        match terminal:
            case RunFinished(outputs):
                if not self._options.as_json and outputs:
                    print_text(outputs_text(outputs))
            case RunFailed():
                try:
                    await run.result()
                except RunFailedError as error:
                    code = report_run_failure(error)
            case _:
                exceeded = self._control.exceeded
                self._say("the run was cancelled" + (f": {exceeded}" if exceeded else ""))
        assert isinstance(terminal, RunFinished | RunFailed | RunCancelled)
        if not self._options.as_json:
            self._say(accounting_line(terminal.accounting))
            self._tell_of_cache()
            if self._run_id is not None and not isinstance(terminal, RunFinished):
                self._say(f"to go on with it: flowforge resume {self._run_id}")
        return code

    def _tell_of_cache(self) -> None:
        if self._cache is None:
            return
        tally = CacheTally(explains=self._options.explains_cache)
        lines = list(tally.take(self._cache.notes))
        for line in (*tally.summary(), *lines):
            self._say(line)

    async def _draw_frames(self) -> None:
        while True:
            await anyio.sleep(_FRAME_S)
            if self._viewer_left.is_set():
                self._progress.refresh()

    async def _watch_signals(self, scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                is_interrupt = number == signal.SIGINT
                code = ExitCode.INTERRUPTED if is_interrupt else ExitCode.TERMINATED
                if self._signal_code is not None:
                    self._end_process(code)
                self._signal_code = code
                self._signalled.set()
                self._progress.note("cancelling; once more ends the process at once")
                if self._run is None:
                    scope.cancel()
                else:
                    self._run.cancel()

    def _end_process(self, code: ExitCode) -> None:
        if sys.stderr.isatty():
            from flowforge.cli.live import show_cursor

            show_cursor()
        os._exit(code)

    def _say(self, line: str) -> None:
        if not self._options.is_quiet:
            print_note(line)
