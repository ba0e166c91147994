"""An OpenAI-compatible server in a test's own process: it answers by script, and has no socket."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import httpx2

from flowforge.language.remote_models import RemoteModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

JSON = dict[str, Any]
USAGE: JSON = {
    "prompt_tokens": 20,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 16},
}


@dataclass(slots=True)
class Reply:
    """One answer. chunks: as server-sent events; a body is sent as it is, without them.

    breaks_off: the connection ends without [DONE]. stalls: it hangs behind the chunks.
    """

    chunks: Sequence[JSON] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: str | None = None
    breaks_off: bool = False
    stalls: bool = False
    error: Exception | None = None


def text_reply(*pieces: str, finish: str = "stop", usage: JSON | None = USAGE) -> Reply:
    """A text in pieces."""
    chunks: list[JSON] = [_chunk({"role": "assistant", "content": ""})]
    chunks += [_chunk({"content": piece}) for piece in pieces]
    chunks.append(_chunk({}, finish))
    if usage is not None:
        chunks.append({"choices": [], "usage": usage})
    return Reply(chunks)


def calls_reply(*calls: tuple[str, str], text: str = "") -> Reply:
    """Calls of tools, each with its arguments in two pieces."""
    chunks: list[JSON] = [_chunk({"content": text})] if text else []
    for idx, (name, arguments) in enumerate(calls):
        head: JSON = {"index": idx, "id": f"id_{idx}", "type": "function"}
        head["function"] = {"name": name, "arguments": ""}
        chunks.append(_chunk({"tool_calls": [head]}))
        half = len(arguments) // 2
        for piece in (arguments[:half], arguments[half:]):
            part: JSON = {"index": idx, "function": {"arguments": piece}}
            chunks.append(_chunk({"tool_calls": [part]}))
    chunks += [_chunk({}, "tool_calls"), {"choices": [], "usage": USAGE}]
    return Reply(chunks)


def error_reply(status: int, message: str, *, code: str | None = None, **headers: str) -> Reply:
    """A refusal with OpenAI's error body."""
    body = json.dumps({"error": {"message": message, "code": code}})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, body=body, headers=named)


def _chunk(delta: JSON, finish: str | None = None) -> JSON:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


class ChatServer:
    """Answers requests in order of arrival, or as `answer` says of a body.

    bodies, headers: of every request. num_closed: answers whose connection was closed before their
    end. stalled: set once an answer hangs.
    """

    def __init__(self, *replies: Reply, answer: Callable[[JSON], Reply] | None = None) -> None:
        self.bodies: list[JSON] = []
        self.headers: list[httpx2.Headers] = []
        self.num_closed = 0
        self.stalled = anyio.Event()
        self._replies = [*replies]
        self._answer = answer

    @property
    def transport(self) -> httpx2.AsyncBaseTransport:
        """In the place of the network."""
        return httpx2.MockTransport(self._handle)

    async def _handle(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(await request.aread())
        self.bodies.append(body)
        self.headers.append(request.headers)
        reply = self._answer(body) if self._answer is not None else self._replies.pop(0)
        if reply.error is not None:
            raise reply.error
        if reply.body is not None:
            kind = {"content-type": "application/json"}
            return httpx2.Response(
                reply.status, headers={**kind, **reply.headers}, content=reply.body.encode()
            )
        kind = {"content-type": "text/event-stream; charset=utf-8"}
        stream = _Events(self, reply)
        return httpx2.Response(reply.status, headers={**kind, **reply.headers}, stream=stream)


class _Events(httpx2.AsyncByteStream):
    def __init__(self, server: ChatServer, reply: Reply) -> None:
        self._server = server
        self._reply = reply
        self._is_over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._reply.chunks:
            await anyio.lowlevel.checkpoint()
            yield f"data: {json.dumps(chunk)}\n\n".encode()
        if self._reply.stalls:
            self._server.stalled.set()
            await anyio.sleep_forever()
        self._is_over = True
        if not self._reply.breaks_off:
            yield b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        if not self._is_over:
            self._server.num_closed += 1


def remote_model(name: str = "big", **changed: Any) -> RemoteModel:
    """A model of a server that nobody reaches."""
    return RemoteModel(name, "http://models.test/v1", "org/Big", **changed)
