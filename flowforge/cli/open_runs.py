"""How many runs of a batch are open at a time: as many as KV pages have room for.

Runs that wait for tools evict each other's conversations when all are open at once
(ThunderAgent, arXiv 2602.13692). So one more is opened when what runs have held so far fits beside
those that are open. Few open runs take turns in the engine worse than many: it is a choice, `auto`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from flowforge.backends.protocol import BackendStatistics
    from flowforge.runtime.events import Accounting

TOKENS_PER_PAGE = 16
"""Of the engine that a batch opens."""

_FIRST = 4
"""Open at most until one has ended and says what they hold."""


class OpenRuns:
    """Lets runs in, at most `most` at a time.

    statistics: of the backend whose pages they share; None where pages are not looked at.
    """

    def __init__(
        self, most: int, statistics: Callable[[], BackendStatistics] | None = None
    ) -> None:
        self.most: int = most
        self._statistics = statistics
        self._num_open = 0
        self._num_ended = 0
        self._num_tokens = 0
        self._left = anyio.Event()

    @property
    def num_open(self) -> int:
        """Runs inside now."""
        return self._num_open

    def ended(self, accounting: Accounting) -> None:
        """A run came to its end: what it computed itself is what it held at most."""
        self._num_ended += 1
        self._num_tokens += accounting.prefilled_tokens + accounting.generated_tokens

    @asynccontextmanager
    async def inside(self) -> AsyncGenerator[None]:
        """Go in, once there is room; the first always has."""
        while not self._has_room():
            await self._left.wait()
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1
            self._left.set()
            self._left = anyio.Event()

    def _has_room(self) -> bool:
        if self._num_open == 0 or self._num_open >= self.most:
            return self._num_open == 0
        if self._statistics is None:
            return True
        if self._num_ended == 0:
            return self._num_open < _FIRST
        num_tokens = (self._num_open + 1) * self._num_tokens / self._num_ended
        return num_tokens <= self._statistics().pages_total * TOKENS_PER_PAGE
