"""Numbers over time, for sparklines."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WINDOW_S = 300

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*#@"


class CountSeries:
    """How much came in each second. Times are seconds since the run's start."""

    def __init__(self, window_s: int = WINDOW_S) -> None:
        self._window_s = window_s
        self._counts: dict[int, int] = {}

    def add(self, time_s: float, count: int) -> None:
        """Count something; what is older than the window is forgotten."""
        second = int(time_s)
        self._counts[second] = self._counts.get(second, 0) + count
        if len(self._counts) > self._window_s:
            for old in sorted(self._counts)[: -self._window_s]:
                del self._counts[old]

    def last(self, num_seconds: int, now_s: float) -> list[int]:
        """The whole seconds before `now_s`, the newest last."""
        end = int(now_s)
        return [self._counts.get(second, 0) for second in range(end - num_seconds, end)]


class Samples:
    """The last values of something that happens now and then."""

    def __init__(self, max_kept: int = WINDOW_S) -> None:
        self._values: deque[float] = deque(maxlen=max_kept)

    def add(self, value: float) -> None:
        """One more value."""
        self._values.append(value)

    def last(self, num: int) -> list[float]:
        """At most `num` values, the newest last."""
        return [*self._values][-num:] if num > 0 else []

    @property
    def newest(self) -> float | None:
        """The newest value, if there is one."""
        return self._values[-1] if self._values else None


def sparkline(values: Iterable[float], *, is_ascii: bool = False) -> str:
    """One cell a value; the highest is a whole one, and nothing is the lowest."""
    bars = _ASCII_BARS if is_ascii else _BARS
    numbers = [*values]
    highest = max(numbers, default=0)
    if highest <= 0:
        return bars[0] * len(numbers)
    return "".join(bars[_level(value, highest, bars)] for value in numbers)


def _level(value: float, highest: float, bars: Sequence[str]) -> int:
    return max(0, min(len(bars) - 1, round(value / highest * (len(bars) - 1))))
