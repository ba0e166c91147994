"""Who is let in: limits of rate and of requests at a time, of each key and of the whole server."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from flowforge.serving.failures import Failure, RequestError, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from flowforge.serving.keys import Key
    from flowforge.serving.settings import Limits

_MINUTE_S = 60.0


@dataclass(slots=True)
class _Client:
    """What a key has used. tokens: of a bucket that fills within a minute; see `_take`."""

    tokens: float
    filled_at_s: float
    num_active: int = 0


class Admission:
    """Counts requests that are under way, and refuses those that are too many."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._clients: dict[str, _Client] = {}
        self._num_active = 0
        self._left = anyio.Event()
        self.is_draining = False

    @property
    def num_active(self) -> int:
        """Requests under way."""
        return self._num_active

    @contextmanager
    def admitted(self, key: Key) -> Generator[None]:
        """Let one request in for as long as the block lasts. Raises RequestError 429 or 503."""
        if self.is_draining:
            raise unavailable("the server is ending and takes no new requests", 5)
        client = self._client(key)
        self._require_room(key, client)
        self._take(key, client)
        client.num_active += 1
        self._num_active += 1
        try:
            yield
        finally:
            client.num_active -= 1
            self._num_active -= 1
            left, self._left = self._left, anyio.Event()
            left.set()

    async def wait_over(self) -> None:
        """Return when no request is under way."""
        while self._num_active:
            await self._left.wait()

    def _client(self, key: Key) -> _Client:
        client = self._clients.get(key.digest)
        if client is None:
            client = _Client(float(self._rate(key) or 0), self._clock())
            self._clients[key.digest] = client
        return client

    def _rate(self, key: Key) -> int | None:
        return key.requests_per_minute or self._limits.requests_per_minute

    def _require_room(self, key: Key, client: _Client) -> None:
        most = key.concurrent or self._limits.concurrent
        if most is not None and client.num_active >= most:
            raise _too_many(f"{most} requests at a time are allowed, and as many are under way", 1)
        if self._num_active >= self._limits.max_requests:
            raise unavailable(f"{self._num_active} requests are under way, which is all it takes")

    def _take(self, key: Key, client: _Client) -> None:
        """Take one from a bucket that holds a minute's requests and fills evenly."""
        rate = self._rate(key)
        if rate is None:
            return
        now_s = self._clock()
        filled = client.tokens + (now_s - client.filled_at_s) * rate / _MINUTE_S
        client.tokens, client.filled_at_s = min(float(rate), filled), now_s
        if client.tokens < 1:
            wait_s = math.ceil((1 - client.tokens) * _MINUTE_S / rate)
            raise _too_many(f"{rate} requests a minute are allowed", wait_s)
        client.tokens -= 1


def _too_many(reason: str, retry_after_s: int) -> RequestError:
    return RequestError(
        Failure(
            429,
            f"too many requests: {reason}; try again in {retry_after_s} s",
            "rate_limit_error",
            code="rate_limit_exceeded",
            retry_after_s=retry_after_s,
        )
    )
