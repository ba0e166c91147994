"""The engine's thread: steps the core while there is work and carries out what others ask of it."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import anyio

from flowforge.engine.arguments import require_integer
from flowforge.engine.loop_bridge import Mailbox, WakeUps
from flowforge.engine.sequence import SequenceId
from flowforge.engine.step_errors import drop_frames
from flowforge.errors import EngineError, FlowForgeError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.engine.core import EngineCore
    from flowforge.engine.statistics import EngineStatistics

T = TypeVar("T")


class EngineThread:
    """Owns the core from start to stop; commands reach it in the order they were posted.

    make_core: called on the thread; what it makes is dropped there at the end. on_end: called there
    after that. wake_ups: for the mailboxes that the thread puts into.
    """

    def __init__(
        self, make_core: Callable[[], EngineCore], on_end: Callable[[], None] | None = None
    ) -> None:
        self._make_core = make_core
        self._on_end = on_end
        self._commands: deque[Callable[[EngineCore], object]] = deque()
        self._wake = threading.Condition()
        self.wake_ups = WakeUps()
        self._is_closing = False
        self._is_over = False
        self._stopping: list[Mailbox[None]] = []
        self._crash: BaseException | None = None
        self._end_error: BaseException | None = None
        self._statistics: EngineStatistics | None = None
        self._thread: threading.Thread | None = None
        self._vocab_size = 0
        self._capacity = 0
        self._ids = count(1)

    async def start(self) -> None:
        """Make the core. Raises what `make_core` raises, and EngineError EN206 the second time.

        A start that is broken off ends the thread as soon as the core is made.
        """
        if self._thread is not None or self._is_closing:
            what = "was started before" if self._thread is not None else "is closed"
            raise EngineError("EN206", f"the engine {what}", help="make a new Engine")
        started: Mailbox[BaseException | None] = Mailbox()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="flowforge-engine", daemon=True
        )
        self._thread.start()
        error: BaseException | None = None
        try:
            with anyio.CancelScope(shield=True):
                (error,) = await started.take()
        except BaseException:
            # asyncio's own cancellation knows no shields. Who did not enter will not leave either.
            self._close()
            raise
        if error is not None:
            raise error

    async def stop(self) -> None:
        """End all sequences and the thread; returns when the core is dropped. Idempotent.

        Raises InternalError IN201 when a defect showed only then.
        """
        over: Mailbox[None] = Mailbox()
        self._close()
        with self._wake:
            if self._thread is None or self._is_over:
                return
            self._stopping.append(over)
        with anyio.CancelScope(shield=True):
            await over.take()
        # All that is left to the thread is to return.
        self._thread.join()
        if self._end_error is not None:
            raise self._crashed() from self._end_error

    @property
    def is_running(self) -> bool:
        """Whether sequences can be worked on: started, not closed, not crashed."""
        return self._statistics is not None and not self._is_closing and self._crash is None

    @property
    def vocab_size(self) -> int:
        """Ids that a prompt may hold and a generation may give. Raises EngineError EN206."""
        self._require_started()
        return self._vocab_size

    @property
    def capacity(self) -> int:
        """See `EngineCore.capacity`. Raises EngineError EN206 before start."""
        self._require_started()
        return self._capacity

    def require_known(self, token_ids: Sequence[int]) -> None:
        """Raise EngineError EN203 for an id that the vocabulary does not have."""
        self._require_started()
        for token_id in token_ids:
            require_integer("a token id", token_id, "EN203")
            if not 0 <= token_id < self._vocab_size:
                raise EngineError(
                    "EN203",
                    f"token id {token_id} is not in the vocabulary of {self._vocab_size} ids",
                )

    def next_id(self) -> SequenceId:
        """An id that no other sequence of this engine has."""
        return SequenceId(next(self._ids))

    def statistics(self) -> EngineStatistics:
        """As of the last step; cheap, from any thread. Raises EngineError EN206 before start."""
        return self._require_started()

    def post(self, command: Callable[[EngineCore], object]) -> None:
        """Have something done between two steps; it must not raise.

        Raises EngineError EN206 when not started or closed, InternalError IN201 when the thread has
        crashed.
        """
        with self._wake:
            if self._crash is not None:
                raise self._crashed() from self._crash
            if self._is_closing:
                raise EngineError("EN206", "the engine is closed")
            self._require_started()
            self._commands.append(command)
            self._wake.notify()

    async def ask(self, question: Callable[[EngineCore], T]) -> T:
        """Have something done between two steps and wait for what it returns or raises."""
        answer: Mailbox[tuple[T, None] | tuple[None, BaseException]] = Mailbox(self.wake_ups)

        def command(core: EngineCore) -> None:
            try:
                result = question(core)
                # Who is answered may look at the statistics next.
                self._statistics = core.statistics()
            except Exception as error:
                answer.put((None, error))
            else:
                answer.put((result, None))

        self.post(command)
        ((result, error),) = await answer.take()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # a result comes with None as its error

    def _run(self, started: Mailbox[BaseException | None]) -> None:
        # In a call of its own, so that the core is gone before anyone is told of the end.
        try:
            self._serve(started)
        except BaseException as error:
            drop_frames(error)
            self._crash = self._end_error = error
        if self._on_end is not None:
            self._on_end()
        with self._wake:
            self._is_over = True
            stopping = list(self._stopping)
        for over in stopping:
            over.put(None)

    def _serve(self, started: Mailbox[BaseException | None]) -> None:
        try:
            core = self._make_core()
        except BaseException as error:
            drop_frames(error)
            self._crash = error
            started.put(error)
            return
        self._vocab_size = core.model.vocab_size
        self._capacity = core.capacity
        self._statistics = core.statistics()
        started.put(None)
        try:
            self._loop(core)
        except BaseException as error:
            drop_frames(error)
            with self._wake:
                self._crash = error
            core.fail_all(self._crashed())
            self._answer_all(core)
        else:
            core.close_all(EngineError("EN206", "the engine was closed"))
            self._statistics = core.statistics()

    def _answer_all(self, core: EngineCore) -> None:
        """Who still waits for an answer after a crash gets one, if only the error it meets."""
        while (command := self._next_command()) is not None:
            # Questions and generations answer by themselves; what raises here has no reader, and
            # the crash that came before is what everyone is told of.
            with suppress(Exception):
                command(core)

    def _loop(self, core: EngineCore) -> None:
        while True:
            with self._wake:
                while not (self._commands or core.has_work or self._is_closing):
                    self._wake.wait()
                if self._is_closing and not self._commands:
                    return
            # Those of now, or a busy caller would keep the others from their step.
            with self.wake_ups.held():
                for _ in range(len(self._commands)):
                    command = self._next_command()
                    if command is not None:
                        command(core)
            with self.wake_ups.held():
                core.step()
                self._statistics = core.statistics()

    def _next_command(self) -> Callable[[EngineCore], object] | None:
        # One at a time: where one breaks the engine, those behind it are still there to answer.
        with self._wake:
            return self._commands.popleft() if self._commands else None

    def _close(self) -> None:
        with self._wake:
            self._is_closing = True
            self._wake.notify()

    def _require_started(self) -> EngineStatistics:
        if self._statistics is None:
            raise EngineError("EN206", "the engine is not started", help="use 'async with'")
        return self._statistics

    def _crashed(self) -> FlowForgeError:
        return InternalError(
            "IN201",
            f"the engine's thread ended: {type(self._crash).__name__}: {self._crash}",
            help="this is a defect of FlowForge: please report it with the traceback",
        )
