"""Leaving a model alone that fails again and again, and trying it once when its pause is over.

After Nygard's circuit breaker ("Release It!", 2007).
"""

from __future__ import annotations


class Breaker:
    """Of one model on one route. failures, pause_s: as for `Route`."""

    def __init__(self, failures: int, pause_s: float) -> None:
        self._most = failures
        self._pause_s = pause_s
        self._num_failures = 0
        self._open_until: float | None = None

    def admit(self, now: float) -> bool:
        """Whether a request may go there; the first behind a pause is a trial, and alone."""
        if self._open_until is None:
            return True
        if now < self._open_until:
            return False
        self._open_until = now + self._pause_s
        return True

    def rest_s(self, now: float) -> float:
        """Seconds until the next trial; 0 where requests may go there."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - now)

    def succeed(self) -> None:
        """A request was answered."""
        self._num_failures = 0
        self._open_until = None

    def fail(self, now: float) -> None:
        """A request failed by the model or its server."""
        self._num_failures += 1
        if self._num_failures >= self._most:
            self._open_until = now + self._pause_s
