"""An OpenAI-compatible server on a socket, for tests of commands: a thread that answers by rule."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from chat_server import Reply


class SocketChatServer(ThreadingHTTPServer):
    """answer: what is said to a body. bodies, keys: of every request so far."""

    daemon_threads = True

    def __init__(self, answer: Callable[[dict[str, Any]], Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        """Up to and with /v1."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        assert isinstance(self.server, SocketChatServer)
        self.server.bodies.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        reply = self.server.answer(body)
        if reply.body is not None:
            self._send(reply.status, "application/json", reply.body.encode(), dict(reply.headers))
            return
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in reply.chunks]
        content = "".join([*events, "data: [DONE]\n\n"]).encode()
        self._send(reply.status, "text/event-stream", content, dict(reply.headers))

    def do_GET(self) -> None:
        listed = json.dumps({"object": "list", "data": [{"id": "first-model"}]}).encode()
        self._send(200, "application/json", listed, {})

    def _send(self, status: int, kind: str, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test shows what it needs."""


@contextmanager
def serving(answer: Callable[[dict[str, Any]], Reply]) -> Generator[SocketChatServer]:
    """A server on a free port of this machine for as long as the block lasts."""
    server = SocketChatServer(answer)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
