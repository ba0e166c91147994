"""What a run tells of its KV pages: beside other events, and no oftener than it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import EngineError
from flowforge.runtime.events import PagesSampled

if TYPE_CHECKING:
    from flowforge.backends.protocol import Backend

INTERVAL_S = 1.0
"""Between two samples at the least: they are kept with the run."""


class PageSampler:
    """Owned by one run."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._last = PagesSampled("")
        self._next_s = 0.0

    def look(self, now_s: float) -> list[PagesSampled]:
        """What is to be told at a time of the run: one sample or none."""
        if now_s < self._next_s:
            return []
        try:
            sample = PagesSampled(self._backend.statistics().page_map)
        except EngineError:
            # An engine that has ended is told of by whoever wanted something of it.
            return []
        if not sample.page_map or sample == self._last:
            return []
        self._last, self._next_s = sample, now_s + INTERVAL_S
        return [sample]
