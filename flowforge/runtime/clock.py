"""Time as a run sees it: now, and waiting."""

from __future__ import annotations

import time
from typing import Protocol

import anyio


class Clock(Protocol):
    """Seconds that never go back."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Return when `delay_s` seconds have passed."""
        ...


class MonotonicClock:
    """The machine's own time."""

    def now(self) -> float:
        """See `Clock.now`."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """See `Clock.sleep`."""
        await anyio.sleep(delay_s)
