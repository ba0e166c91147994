"""The way to a run that goes on: a Unix socket of its own, for its owner alone.

One order a connection: a line of JSON to the run, and one back; or, for `watch`, the run's events
from its first to its last, and between them how it stands. The socket is the run's as long
as its lease is: what a killed process left there is taken away by whoever has the run next.

    {"order": "cancel"} → {"ok": true}; so do "pause" and "go on"
    {"order": "cancel step", "path": "explore[1]/draft"} → {"ok": true}: the run goes on without it
    {"order": "answer", "path": "gate", "text": "yes"} → {"ok": true}
    {"order": "status"} → {"ok": true, "questions": [{"path": …, "prompt": …, "choices": […]}],
                          "is_paused": false, and what `limits` gives}
    {"order": "limits", "concurrency": 2, "max_tokens": null} → {"ok": true, "limits": {…},
                          "used": {…}}: sets those that are named; null takes one away
    {"order": "watch"} → events as `--json` prints them, {"state": {"is_paused": false,
                         "elapsed_s": 3.5, "statistics": {…}}} twice a second
"""

from __future__ import annotations

import contextlib
import json
import os
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import anyio

from flowforge.control.gate import Gate, GatedBackend
from flowforge.control.limits import Allowance, UnusableLimitError
from flowforge.control.orders import TIMEOUT_S
from flowforge.errors import WorkflowError
from flowforge.runtime.event_json import event_as_json
from flowforge.task_groups import open_task_group

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping
    from pathlib import Path

    from anyio.abc import SocketStream, TaskStatus

    from flowforge.backends.protocol import Backend, BackendStatistics
    from flowforge.runtime.commands import StartQuestion
    from flowforge.runtime.handle import RunHandle
    from flowforge.runtime.people import Asker

ORDERS = ("cancel", "cancel step", "pause", "go on", "limits", "status", "answer", "watch")

_MAX_LINE_BYTES = 1_000_000
_FLUSH_S = 0.05
"""Texts of one step within this time go to a viewer as one."""

_STATE_S = 0.5
_LAST_EVENT_S = 1.0
"""How long a run that is over waits for viewers to take its last event."""

_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class Control:
    """Takes orders for one run, and shows it. cancel: ends the run early.

    exceeded: the limit that ended it, None while none did. A viewer is never waited for: what it
    has not taken is coalesced, see `runtime.stream`. is_shown: whether there will be something to
    watch; a batch of runs takes orders only.
    """

    def __init__(self, cancel: Callable[[], None], *, is_shown: bool = True) -> None:
        self._is_shown = is_shown
        self.gate = Gate()
        self.allowance = Allowance(self._exceed)
        self.exceeded: str | None = None
        self._cancel = cancel
        self._waiting: dict[str, _Waiting] = {}
        self._begun = anyio.Event()
        self._shown: tuple[RunHandle[object], Callable[[], BackendStatistics]] | None = None
        self._num_viewers = 0
        self._viewer_left = anyio.Event()

    def show(self, run: RunHandle[object], statistics: Callable[[], BackendStatistics]) -> None:
        """The run has begun: viewers get its events and counters from now on."""
        self._shown = (run, statistics)
        self._begun.set()

    def around(self, backend: Backend) -> Backend:
        """The backend as the run may use it: paused and limited by orders."""
        return GatedBackend(backend, self.gate, self.allowance.spend)

    async def all_told(self) -> None:
        """Return when every viewer has the last event, or has had the time to take it."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(_LAST_EVENT_S):
            while self._num_viewers:
                self._viewer_left = anyio.Event()
                await self._viewer_left.wait()

    async def ask(self, question: StartQuestion) -> str:
        """Wait until somebody sends the answer; an `Asker`."""
        waiting = self._waiting[question.path] = _Waiting(question)
        try:
            await waiting.answered.wait()
        finally:
            del self._waiting[question.path]
        return waiting.answers[0]

    def or_ask(self, otherwise: Asker) -> Asker:
        """An asker: whoever answers first, an order or `otherwise`.

        Where `otherwise` has nobody, orders are waited for as long as somebody watches.
        """

        async def ask(question: StartQuestion) -> str:
            answers: list[str] = []
            failures: list[WorkflowError] = []

            async def ask_otherwise() -> None:
                try:
                    answers.append(await otherwise(question))
                except WorkflowError as error:
                    while self._num_viewers:
                        await self._viewer_left.wait()
                    failures.append(error)
                tasks.cancel_scope.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask_otherwise)
                answers.append(await self.ask(question))
                tasks.cancel_scope.cancel()
            if failures:
                raise failures[0]
            return answers[0]

        return ask

    async def serve(
        self, path: Path, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen at `path` until this is cancelled; started once somebody may connect.

        A socket that is there is taken away: whoever calls has the run, so it is of a process that
        is gone.
        """
        with _owner_only():
            listener = await anyio.create_unix_listener(path, mode=0o600)
        async with listener, anyio.create_task_group() as tasks:
            task_status.started()
            tasks.start_soon(self.allowance.watch_time)
            await listener.serve(self._handle)

    @asynccontextmanager
    async def served(self, path: Path) -> AsyncGenerator[None]:
        """Take orders at `path` as long as the block lasts."""
        async with open_task_group() as tasks:
            await tasks.start(self.serve, path)
            try:
                yield
            finally:
                await self.all_told()
                tasks.cancel_scope.cancel()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    async def _handle(self, stream: SocketStream) -> None:
        async with stream:
            line = b""
            with anyio.move_on_after(TIMEOUT_S), contextlib.suppress(*_GONE):
                line = await _line(stream)
                reply = self._reply(line)
                if reply is not None:
                    await stream.send(_encoded(reply))
                    return
            if line:
                await self._show_to(stream)

    async def _show_to(self, stream: SocketStream) -> None:
        self._num_viewers += 1
        try:
            await self._begun.wait()
            assert self._shown is not None, "shown once it has begun"
            run, statistics = self._shown
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tell_state, stream, run, statistics, tasks.cancel_scope)
                tasks.start_soon(_leave_with, stream, tasks.cancel_scope)
                with contextlib.suppress(*_GONE):
                    await _tell_events(stream, run)
                tasks.cancel_scope.cancel()
        finally:
            self._num_viewers -= 1
            self._viewer_left.set()
            self._viewer_left = anyio.Event()

    async def _tell_state(
        self,
        stream: SocketStream,
        run: RunHandle[object],
        statistics: Callable[[], BackendStatistics],
        viewer: anyio.CancelScope,
    ) -> None:
        with contextlib.suppress(*_GONE):
            while True:
                state = {
                    "is_paused": self.gate.is_closed,
                    "elapsed_s": round(run.elapsed_s, 3),
                    "statistics": asdict(statistics()),
                }
                await stream.send(_encoded({"state": state}))
                await anyio.sleep(_STATE_S)
        viewer.cancel()

    def _reply(self, line: bytes) -> dict[str, Any] | None:
        """The reply to an order; None to one that is to be shown the run."""
        try:
            order: dict[str, Any] = json.loads(line)
            name = order["order"]
        except (ValueError, KeyError, TypeError):
            return _refused("expected a JSON object with an 'order'")
        match name:
            case "watch" if self._is_shown:
                return None
            case "watch":
                return _refused("a batch is not watched as one", "watch a run of it")
            case "cancel":
                self._end()
                return {"ok": True}
            case "cancel step":
                return self._cancel_step(order.get("path"))
            case "pause":
                self.gate.close()
                return {"ok": True}
            case "go on":
                self.gate.open()
                return {"ok": True}
            case "limits":
                return self._change_limits(order)
            case "status":
                return {**self._told_limits(), "questions": self.questions()}
            case "answer":
                return self.answer(order.get("path"), order.get("text"))
            case _:
                return _refused(f"unknown order {name!r}, expected one of {', '.join(ORDERS)}")

    def _end(self) -> None:
        self._cancel()
        # What waits at the gate comes to its end, too.
        self.gate.open()
        self.gate.limit(None)

    def _exceed(self, reason: str) -> None:
        self.exceeded = reason
        self._end()

    def _change_limits(self, order: Mapping[str, object]) -> dict[str, Any]:
        try:
            self.allowance.change(order)
        except UnusableLimitError as error:
            return _refused(str(error))
        if self.exceeded is None:
            self.gate.limit(self.allowance.limits.concurrency)
        return self._told_limits()

    def _told_limits(self) -> dict[str, Any]:
        used = {
            "concurrency": self.gate.num_inside,
            "max_tokens": self.allowance.num_tokens,
            "max_time_s": round(self.allowance.elapsed_s, 3),
        }
        limits = asdict(self.allowance.limits)
        return {"ok": True, "is_paused": self.gate.is_closed, "limits": limits, "used": used}

    def _cancel_step(self, path: object) -> dict[str, Any]:
        if self._shown is None or not isinstance(path, str):
            return _refused("nothing runs yet" if isinstance(path, str) else "expected a 'path'")
        run, _ = self._shown
        try:
            run.cancel_step(path)
        except WorkflowError as error:
            return _refused(error.message, error.help)
        return {"ok": True}

    def questions(self) -> list[dict[str, Any]]:
        """What nobody has answered yet: path, prompt, choices and what is shown with it."""
        return [one.told() for one in self._waiting.values()]

    def answer(self, path: object, text: object) -> dict[str, Any]:
        """Answer the question of a step; {"ok": false, "reason": …} where it waits for no such."""
        waiting = self._waiting.get(path) if isinstance(path, str) else None
        if waiting is None:
            known = ", ".join(map(repr, self._waiting)) or "nobody"
            return _refused(f"{path!r} does not wait for an answer; {known} does")
        choices = waiting.question.choices
        if not isinstance(text, str) or (choices and text not in choices):
            return _refused(f"expected one of {', '.join(map(repr, choices)) or 'any text'}")
        waiting.answers.append(text)
        waiting.answered.set()
        return {"ok": True}


class _Waiting:
    """A question that nobody has answered yet."""

    def __init__(self, question: StartQuestion) -> None:
        self.question = question
        self.answers: list[str] = []
        self.answered = anyio.Event()

    def told(self) -> dict[str, Any]:
        question = self.question
        return {
            "path": question.path,
            "prompt": question.prompt,
            "choices": [*question.choices],
            "show": question.show,
        }


async def _tell_events(stream: SocketStream, run: RunHandle[object]) -> None:
    reader = run.events(max_waiting=0)
    while events := await reader.batch():
        await stream.send(b"".join(_encoded(event_as_json(event)) for event in events))
        await anyio.sleep(_FLUSH_S)


async def _leave_with(stream: SocketStream, viewer: anyio.CancelScope) -> None:
    """Stop showing the run to a viewer that is gone."""
    with contextlib.suppress(*_GONE):
        while True:
            await stream.receive()
    viewer.cancel()


def _encoded(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, ensure_ascii=False).encode() + b"\n"


async def _line(stream: SocketStream) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
        line += await stream.receive()
    return line


@contextlib.contextmanager
def _owner_only() -> Generator[None]:
    """Nobody else may come in between the making of a socket and its mode."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _refused(reason: str, help: str | None = None) -> dict[str, Any]:
    return {"ok": False, "reason": reason, "help": help}
