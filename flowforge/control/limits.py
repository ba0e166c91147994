"""What a run may use, as orders set it while the run goes on, and what it has used.

A run that comes to a limit of tokens or time is cancelled as by an order: every `finally` runs, and
it can be resumed. Limits are of the process that has the run; a resumed one begins without.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit.

    concurrency: generations at one time; those that are under way when it is lowered end first.
    max_tokens: that models write. max_time_s: seconds since the process took the run.
    """

    concurrency: int | None = None
    max_tokens: int | None = None
    max_time_s: float | None = None


class UnusableLimitError(ValueError):
    """The message says which limit, what was expected and what was got."""


class Allowance:
    """The limits of one run and its use.

    exceed: told once, with the reason; ends the run. now: seconds, on a clock that never jumps.
    """

    def __init__(
        self, exceed: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits: Limits = Limits()
        self.num_tokens: int = 0
        self._exceed = exceed
        self._now = now
        self._began_s = now()
        self._changed = anyio.Event()
        self._is_exceeded = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since the process took the run."""
        return self._now() - self._began_s

    def change(self, told: Mapping[str, object]) -> None:
        """Set those limits that are named; null takes one away. Raises UnusableLimitError."""
        changes: dict[str, Any] = {
            name: _checked(name, value) for name, value in told.items() if name in _CHECKS
        }
        self.limits = replace(self.limits, **changes)
        self._changed.set()
        self._changed = anyio.Event()
        self._look()

    def spend(self, num_tokens: int) -> None:
        """Models wrote so many tokens more."""
        self.num_tokens += num_tokens
        self._look()

    async def watch_time(self) -> None:
        """Look at the time whenever it may be up; until cancelled."""
        while True:
            self._look()
            limit_s = self.limits.max_time_s
            left_s = math.inf if limit_s is None else max(0.0, limit_s - self.elapsed_s)
            changed = self._changed
            with anyio.move_on_after(math.inf if self._is_exceeded else left_s):
                await changed.wait()

    def _look(self) -> None:
        limits = self.limits
        if self._is_exceeded:
            return
        if limits.max_tokens is not None and self.num_tokens >= limits.max_tokens:
            self._end(f"it wrote {self.num_tokens:,} of at most {limits.max_tokens:,} tokens")
        elif limits.max_time_s is not None and self.elapsed_s >= limits.max_time_s:
            self._end(f"it took its {limits.max_time_s:g} s")

    def _end(self, reason: str) -> None:
        self._is_exceeded = True
        self._exceed(reason)


def _checked(name: str, value: object) -> float | None:
    expected, is_right = _CHECKS[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_right(value):
        raise UnusableLimitError(f"{name} must be {expected} or null, got {value!r}")
    return value


def _is_count(value: float) -> bool:
    return isinstance(value, int) and value >= 1


def _is_time(value: float) -> bool:
    return math.isfinite(value) and value > 0


_CHECKS: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "concurrency": ("a whole number from 1", _is_count),
    "max_tokens": ("a whole number from 1", _is_count),
    "max_time_s": ("a number of seconds above 0", _is_time),
}
