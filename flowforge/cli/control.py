"""The way to a run that goes on: a Unix socket of its own, for its owner alone.

One request a connection: a line of JSON to the run, and one back. The socket is the run's as long
as its lease is: what a killed process left there is taken away by whoever has the run next.

    {"order": "cancel"} → {"ok": true}
    {"order": "answer", "path": "gate", "text": "yes"} → {"ok": true}
    {"order": "status"} → {"ok": true, "questions": [{"path": …, "prompt": …, "choices": […]}]}
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from anyio.abc import SocketStream, TaskGroup

    from flowforge.runtime.commands import StartQuestion

_MAX_PATH_BYTES = 100
"""Of a socket's name: the system allows a little more."""
_MAX_LINE_BYTES = 1_000_000
_TIMEOUT_S = 5.0


class Control:
    """Takes orders for one run. cancel: ends the run early."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._waiting: dict[str, _Waiting] = {}

    async def ask(self, question: StartQuestion) -> str:
        """Wait until somebody sends the answer; an `Asker`."""
        waiting = self._waiting[question.path] = _Waiting(question)
        try:
            await waiting.answered.wait()
        finally:
            del self._waiting[question.path]
        return waiting.answers[0]

    async def serve(self, path: Path, tasks: TaskGroup) -> None:
        """Listen at `path` until the tasks are cancelled.

        A socket that is there is taken away: whoever calls has the run, so it is of a process that
        is gone.
        """
        with _owner_only():
            listener = await anyio.create_unix_listener(path, mode=0o600)
        tasks.start_soon(listener.serve, self._handle)

    async def _handle(self, stream: SocketStream) -> None:
        async with stream:
            with anyio.move_on_after(_TIMEOUT_S), contextlib.suppress(anyio.EndOfStream):
                reply = self._reply(await _line(stream))
                await stream.send(json.dumps(reply, ensure_ascii=False).encode() + b"\n")

    def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            order: dict[str, Any] = json.loads(line)
            name = order["order"]
        except (ValueError, KeyError, TypeError):
            return _refused("expected a JSON object with an 'order'")
        match name:
            case "cancel":
                self._cancel()
                return {"ok": True}
            case "status":
                return {"ok": True, "questions": [one.told() for one in self._waiting.values()]}
            case "answer":
                return self._answer(order.get("path"), order.get("text"))
            case _:
                return _refused(f"unknown order {name!r}, expected cancel, status or answer")

    def _answer(self, path: object, text: object) -> dict[str, Any]:
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


def send_order(journal: Path, run_id: str, **order: object) -> dict[str, Any]:
    """Send an order to a run and return its reply.

    Raises EngineError EN708 for a run that nobody has, or that refuses.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(str(socket_path(journal, run_id)))
            connection.sendall(json.dumps(order, ensure_ascii=False).encode() + b"\n")
            with connection.makefile("rb") as answer:
                reply: dict[str, Any] = json.loads(answer.readline())
    except (OSError, ValueError) as error:
        raise EngineError(
            "EN708",
            f"run {run_id!r} cannot be reached: it is not going on",
            help="'flowforge ps' lists the runs that are",
        ) from error
    if not reply["ok"]:
        raise EngineError("EN708", f"run {run_id!r} refuses: {reply['reason']}")
    return reply


def socket_path(journal: Path, run_id: str) -> Path:
    """Where a run listens: beside its lease, or in a folder of ours if that name is too long."""
    beside = journal.with_name(f"{journal.name}.locks") / f"{run_id}.sock"
    if len(os.fsencode(beside)) <= _MAX_PATH_BYTES:
        return beside
    folder = Path(tempfile.gettempdir()) / f"flowforge-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise EngineError("EN708", f"the folder {str(folder)!r} is open to others")
    name = blake2b(os.fsencode(beside), digest_size=12).hexdigest()
    return folder / f"{name}.sock"


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


def _refused(reason: str) -> dict[str, Any]:
    return {"ok": False, "reason": reason}
