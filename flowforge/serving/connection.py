"""A connection before its request: what is no HTTP is refused in JSON, what stops is ended."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from flowforge.serving.failures import Failure

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - connections of uvicorn are asyncio's


def connections_within(most_s: float) -> type[H11Protocol]:
    """Connections that wait no longer than most_s seconds for the head of a request."""
    return type("Connection", (_Connection,), {"most_s": most_s})


class _Connection(H11Protocol):
    most_s: float
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there, and may begin."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """More of a head or a body. A head that comes byte by byte does not get more time."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._deadline is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._forget()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(Failure(400, f"this is no HTTP request: {msg}", code="bad_http"))

    def _wait_for_head(self) -> None:
        self._deadline = self.loop.call_later(self.most_s, self._head_is_late)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        begun, _ = self.conn.trailing_data
        if not begun:
            self.transport.close()  # as a client that connects ahead and has nothing to ask expects
            return
        message = f"the head of the request did not come within {self.most_s:g} s"
        self._refuse(Failure(408, message, code="request_timeout"))

    def _refuse(self, failure: Failure) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps(failure.body()).encode()
        head = h11.Response(
            status_code=failure.status,
            headers=[
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ],
            reason=HTTPStatus(failure.status).phrase.encode(),
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
