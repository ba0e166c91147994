"""The way to one server: requests in, chunks out, tried again where that may help.

A request is tried again only until its first chunk has come: what was handed out cannot be taken
back. Waits are as long as the server asks for, or grow with full jitter (Brooker, "Exponential
Backoff and Jitter", AWS 2015), and never longer than the model's `max_wait_s`.
"""

from __future__ import annotations

import email.utils
import json
import os
import random
import time
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import httpx2

from flowforge.backends.notices import Delayed
from flowforge.backends.remote.answer import broken_off, not_understood
from flowforge.errors import EngineError
from flowforge.secrets.secret_box import BOX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping

    from flowforge.backends.notices import Notice
    from flowforge.backends.protocol import JsonValue
    from flowforge.language.remote_models import RemoteModel

T = TypeVar("T")

_CONNECT_S = 10.0
_LAST_BYTES_S = 1.0
_FIRST_BACKOFF_S = 0.5
_MAX_BODY_CHARS = 300
_MAX_BODY_BYTES = 8_000_000
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses that another try may not meet again."""
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes that come with 429 and that no wait helps against."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How waits are waited and drawn; tests bring their own. draw: a number in [0, 1)."""

    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    draw: Callable[[], float] = random.random
    now: Callable[[], float] = time.time


DEFAULT_WAITING = Waiting()


class _FailedTryError(Exception):
    """A try that failed. may_pass: whether the next one may not. asked_s: the wait asked for."""

    def __init__(self, error: EngineError, may_pass: bool, asked_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.may_pass = may_pass
        self.asked_s = asked_s


@dataclass(slots=True, eq=False)
class RemoteServer:
    """Requests to one model of one server. Owned by its backend, which closes the client.

    num_in_flight: requests that have not come to their end.
    """

    model: RemoteModel
    client: httpx2.AsyncClient
    key: str | None = field(default=None, repr=False)
    waiting: Waiting = DEFAULT_WAITING
    num_in_flight: int = 0
    _room: anyio.Semaphore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._room = anyio.Semaphore(self.model.concurrency)

    async def chunks(
        self, body: Mapping[str, JsonValue], tell: Callable[[Notice], None] | None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Ask, and give each chunk of the answer. Closing the generator closes the connection.

        tell: hears of waits. Raises EngineError EN401 to EN405, EN408, EN409.
        """
        if self.key is not None and (box := BOX.get()) is not None:
            box.hide(self.key)
        self.num_in_flight += 1
        try:
            async with self._room:
                attempt = 1
                while True:
                    try:
                        async with aclosing(self._try(body)) as chunks:
                            async for chunk in chunks:
                                yield chunk
                        return
                    except _FailedTryError as failed:
                        await self._wait(failed, attempt, tell)
                    attempt += 1
        finally:
            self.num_in_flight -= 1

    async def _wait(
        self, failed: _FailedTryError, attempt: int, tell: Callable[[Notice], None] | None
    ) -> None:
        """Wait before the next try. Raises the error where there is none."""
        error, model = failed.error, self.model
        if not failed.may_pass or attempt >= model.attempts:
            if failed.may_pass and model.attempts > 1:
                error.message += f", also at try {attempt}"
                error.args = (error.message,)
            raise error from error.__cause__
        wait_s = failed.asked_s
        if wait_s is None:
            wait_s = self.waiting.draw() * _FIRST_BACKOFF_S * 2 ** min(attempt, 20)
        wait_s = min(wait_s, model.max_wait_s)
        if tell is not None:
            tell(Delayed(model.label, error.code, error.message, round(wait_s, 3), attempt))
        await self.waiting.sleep(wait_s)

    async def _try(self, body: Mapping[str, JsonValue]) -> AsyncGenerator[Mapping[str, Any], None]:
        """One try. Raises _FailedTryError before the first chunk, EngineError behind it."""
        num_chunks = 0
        try:
            async with self.client.stream(
                "POST", f"{self.model.url}/chat/completions", json=body, headers=self._headers()
            ) as response:
                if response.status_code != 200:
                    raise await self._refused(response)
                async with aclosing(_chunks_of(response, self.model.label)) as chunks:
                    async for chunk in chunks:
                        if "error" in chunk and not chunk.get("choices"):
                            raise self._failed(chunk["error"], num_chunks)
                        num_chunks += 1
                        yield chunk
        except httpx2.HTTPError as error:
            if num_chunks:
                raise broken_off(self.model.label, _reason(error)) from error
            raise self._unreachable(error) from error

    def _headers(self) -> dict[str, str]:
        accepted = {"Accept": "text/event-stream"}
        return accepted if self.key is None else {**accepted, "Authorization": f"Bearer {self.key}"}

    def _unreachable(self, error: httpx2.HTTPError) -> _FailedTryError:
        model = self.model
        if isinstance(error, httpx2.TimeoutException) and not isinstance(
            error, httpx2.ConnectTimeout
        ):
            message = f"{model.label} said nothing for {model.timeout_s:g} s ({model.url})"
            help = "raise its 'timeout', or ask the server for less at a time ('concurrency')"
        else:
            message = f"{model.label} cannot be reached at {model.url}: {_reason(error)}"
            help = "start the server, or correct the model's 'url'"
        told = EngineError("EN401", message, help=help)
        told.__cause__ = error
        return _FailedTryError(told, may_pass=True)

    def _failed(self, told: object, num_chunks: int) -> _FailedTryError | EngineError:
        """An error in the place of a chunk."""
        reason = _message_in(told)
        if num_chunks:
            return broken_off(self.model.label, reason)
        code = told.get("code") if isinstance(told, dict) else None
        status = code if isinstance(code, int) else 500
        return _FailedTryError(self._error_of(status, reason), status in _BUSY)

    async def _refused(self, response: httpx2.Response) -> _FailedTryError:
        status = response.status_code
        text = await _beginning_of(response)
        try:
            told = json.loads(text)
        except ValueError:
            told = text
        inner = told.get("error", told) if isinstance(told, dict) else told
        code = inner.get("code") if isinstance(inner, dict) else None
        may_pass = status in _BUSY and code not in _SPENT
        asked_s = _asked_s(response.headers, self.waiting.now())
        return _FailedTryError(self._error_of(status, _message_in(inner)), may_pass, asked_s)

    def _error_of(self, status: int, reason: str) -> EngineError:
        model = self.model
        head = f"{model.label} ({model.url}) answered with status {status}"
        match status:
            case 401 | 403:
                code = "EN402"
                help = (
                    'name the environment variable with its key: api_key = "NAME"'
                    if model.api_key is None
                    else f"check the key in {model.api_key}"
                )
            case 404 | 405:
                code = "EN404"
                help = f"does it have the model {model.model!r}, and does its url end with /v1?"
            case _ if status in _BUSY:
                code = "EN403"
                help = "ask it for less at a time ('concurrency'), or wait longer ('max_wait')"
            case _:
                code = "EN405"
                help = "the server's words say what it does not take; 'dialect' says what it knows"
        return EngineError(code, f"{head}: {reason}", help=help)


def key_of(model: RemoteModel, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key of a model's server. Raises EngineError EN410 when it is not set."""
    if model.api_key is None:
        return None
    key = environment.get(model.api_key, "").strip()
    if not key:
        raise EngineError(
            "EN410",
            f"{model.label} takes its key from {model.api_key!r}, which is not set",
            help=f"set it before the run: export {model.api_key}=…",
        )
    return key


def client_for(
    model: RemoteModel, transport: httpx2.AsyncBaseTransport | None = None
) -> httpx2.AsyncClient:
    """A client with the model's limits; to be closed by who asks for it.

    transport: in the place of the network, for tests.
    """
    timeout = httpx2.Timeout(model.timeout_s, connect=min(_CONNECT_S, model.timeout_s), pool=None)
    limits = httpx2.Limits(
        max_connections=model.concurrency, max_keepalive_connections=model.concurrency
    )
    # Reading the certificates of the machine takes a tenth of a second.
    is_encrypted = model.url.startswith("https:")
    return httpx2.AsyncClient(
        timeout=timeout, limits=limits, transport=transport, verify=is_encrypted
    )


async def _chunks_of(response: httpx2.Response, by: str) -> AsyncGenerator[Mapping[str, Any], None]:
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "text/event-stream":
        # A server that does not stream answers all at once.
        yield _object(await _beginning_of(response, _MAX_BODY_BYTES), by)
        return
    async with _ended(aiter(httpx2.EventSource(response))) as events:
        async for event in events:
            if event.data.strip() == "[DONE]":
                break
            if event.data.strip():
                yield _object(event.data, by)
        # A connection that was read to its end can be used again.
        with anyio.move_on_after(_LAST_BYTES_S):
            async for _ in events:
                pass


@asynccontextmanager
async def _ended(items: AsyncIterator[T]) -> AsyncGenerator[AsyncIterator[T]]:
    """Have an iterator come to its end, and with it those within it.

    Closing it would leave these to the garbage collector, which trio warns of.
    """
    try:
        yield items
    finally:
        with anyio.CancelScope() as scope, suppress(httpx2.HTTPError):
            scope.cancel()
            async for _ in items:
                pass


def _object(text: str, by: str) -> Mapping[str, Any]:
    try:
        told = json.loads(text)
    except ValueError as error:
        raise not_understood(by, text) from error
    if not isinstance(told, dict):
        raise not_understood(by, text)
    return told


async def _beginning_of(response: httpx2.Response, most: int = 20_000) -> str:
    """As much of a body as may be needed: what refuses a request may send anything."""
    body = b""
    async with _ended(response.aiter_bytes()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > most:
                break
    return body[:most].decode("utf-8", "replace")


def _message_in(told: object) -> str:
    """The server's words, cut."""
    message = told.get("message", told) if isinstance(told, dict) else told
    text = message if isinstance(message, str) else json.dumps(message, default=str)
    text = " ".join(text.split()) or "it said nothing"
    return text if len(text) <= _MAX_BODY_CHARS else f"{text[:_MAX_BODY_CHARS]}…"


def _reason(error: Exception) -> str:
    return str(error).strip().lower() or type(error).__name__


def _asked_s(headers: httpx2.Headers, now: float) -> float | None:
    """Seconds that a server asks for; None where it does not, or not rightly."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1_000
    told = headers.get("retry-after")
    seconds = _number(told)
    if seconds is not None or told is None:
        return seconds
    try:
        return max(0.0, email.utils.parsedate_to_datetime(told).timestamp() - now)
    except (TypeError, ValueError):
        return None


def _number(told: str | None) -> float | None:
    try:
        number = float(told or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
