"""Server-sent events to one client: kept alive while nothing comes, ended when it is gone.

A client that does not take what it is sent holds up nobody but itself, and for a bounded time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import anyio
from starlette.responses import Response

from flowforge.serving.failures import failure_of, unavailable
from flowforge.task_groups import first_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from flowforge.serving.settings import Waits

    Body: TypeAlias = Callable[["EventWriter"], Awaitable[None]]
    """Writes the whole stream; cancelled when the client goes."""

T = TypeVar("T")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_COMMENT = b": keep-alive\n\n"


class ClientGoneError(Exception):
    """The client went away, or takes nothing any more."""


class EventWriter:
    """Sends whole events, one at a time, for however many tasks there are."""

    def __init__(self, send: Send, write_s: float) -> None:
        self._send = send
        self._write_s = write_s
        # A tour of the loop for every event would take as long as the event.
        self._lock = anyio.Lock(fast_acquire=True)
        self.num_sent = 0

    async def send(self, value: object, *, kind: str = "", number: int | None = None) -> None:
        """One event with a JSON value. kind: its name. number: its id, to go on behind it.

        Raises ClientGoneError when the client does not take it in time.
        """
        await self.send_text(_encode(value), kind=kind, number=number)

    async def send_text(self, text: str, *, kind: str = "", number: int | None = None) -> None:
        """One event with a text of one line. Raises as `send`."""
        head = "" if number is None else f"id: {number}\n"
        if kind:
            head += f"event: {kind}\n"
        await self._write(f"{head}data: {text}\n\n".encode("utf-8", "replace"))

    async def comment(self) -> None:
        """What clients pass over, and what keeps connections open."""
        await self._write(_COMMENT)

    async def _write(self, frame: bytes) -> None:
        async with self._lock:
            with anyio.move_on_after(self._write_s) as timer:
                await self._send({"type": "http.response.body", "body": frame, "more_body": True})
            if timer.cancelled_caught:
                raise ClientGoneError
            self.num_sent += 1


class EventStream(Response):
    """A response that `write` writes.

    on_error: told of an error that ended the stream early. cut: set when the server waits no longer
    for what is under way. An error of `write` is sent as an event with its body, because the status
    has been sent; a client that goes cancels `write`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        write: Body,
        waits: Waits,
        cut: anyio.Event,
        on_error: Callable[[Exception], None],
    ) -> None:
        super().__init__(
            headers={
                "cache-control": "no-cache",
                "content-type": "text/event-stream; charset=utf-8",
                # Proxies would gather events otherwise.
                "x-accel-buffering": "no",
            }
        )
        del self.headers["content-length"]
        self._write_all = write
        self._waits = waits
        self._cut = cut
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        writer = EventWriter(send, self._waits.write_s)
        is_gone = True
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_leave_with_client, receive, tasks.cancel_scope)
                tasks.start_soon(_keep_alive, writer, self._waits.keep_alive_s)
                await self._write_unless_cut(writer)
                is_gone = False
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            if not isinstance(first_error(group), ClientGoneError):
                raise
        if is_gone:
            scope["state"]["is_gone"] = True
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_unless_cut(self, writer: EventWriter) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_leave_when, self._cut, tasks.cancel_scope)
            await self._write(writer)
            tasks.cancel_scope.cancel()
        if self._cut.is_set():
            await writer.send(failure_of(_ending()).body())

    async def _write(self, writer: EventWriter) -> None:
        try:
            await self._write_all(writer)
        except ClientGoneError:
            raise
        except Exception as error:
            # The top of a request: it is logged, and the client is told.
            self._on_error(error)
            await writer.send(failure_of(error).body())


async def run_unless_gone(
    receive: Receive, cut: anyio.Event, work: Callable[[], Awaitable[T]]
) -> T:
    """Do some work for a client whose whole request has been read.

    Raises, once the work is cancelled, ClientGoneError when the client goes first and RequestError
    503 when `cut` is set first; else what the work raises.
    """
    result: list[T] = []
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_leave_with_client, receive, tasks.cancel_scope)
            tasks.start_soon(_leave_when, cut, tasks.cancel_scope)
            result.append(await work())
            tasks.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise first_error(group) from None
    if result:
        return result[0]
    raise _ending() if cut.is_set() else ClientGoneError


async def _leave_with_client(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _leave_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _ending() -> Exception:
    return unavailable("the server has ended before the answer was whole", 5)


async def _keep_alive(writer: EventWriter, every_s: float) -> None:
    while True:
        before = writer.num_sent
        await anyio.sleep(every_s)
        if writer.num_sent == before:
            await writer.comment()
