"""Whether the engine still answers: asked again and again, by the server itself."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import anyio

from flowforge.errors import FlowForgeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.engine.engine import Engine

_logger = logging.getLogger(__name__)

_EVERY_S = 1.0


class Pulse:
    """Knows when the engine last answered between two steps, and last wrote a token."""

    def __init__(
        self, engine: Engine, stall_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._stall_s = stall_s
        self._clock = clock
        self._answered_at_s = self._token_at_s = clock()
        self._num_tokens = 0
        self.crash: str | None = None

    @property
    def silent_s(self) -> float:
        """Seconds since the engine last answered."""
        return self._clock() - self._answered_at_s

    @property
    def since_token_s(self) -> float:
        """Seconds since a token was last known to be written, or since the start."""
        return self._clock() - self._token_at_s

    @property
    def is_stalled(self) -> bool:
        """Whether nothing can be expected of the engine."""
        return self.crash is not None or self.silent_s > self._stall_s

    async def beat(self) -> None:
        """Ask the engine once; returns when it has answered."""
        try:
            statistics = await self._engine.settle()
        except FlowForgeError as error:
            if self.crash is None:
                _logger.error("the engine does not answer any more: %s", error.message)
            self.crash = error.code
            return
        self._answered_at_s = self._clock()
        if statistics.generated_tokens != self._num_tokens:
            self._num_tokens = statistics.generated_tokens
            self._token_at_s = self._answered_at_s

    async def watch(self) -> None:
        """Ask as long as this is not cancelled."""
        while self.crash is None:
            await self.beat()
            await anyio.sleep(_EVERY_S)
