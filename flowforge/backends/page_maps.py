"""What each KV page of a backend is used for, as a short text that samples and events carry.

Runs of pages with one use, each as a letter and a count: `s12p1t4c3f2892`. f is free, p private to
one conversation, t of the prefix tree with one conversation on it, s with several, c with none:
cached, until its page is needed.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import anyio

from flowforge.backends.passing import PassingBackend
from flowforge.errors import EngineError
from flowforge.task_groups import open_task_group

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from flowforge.backends.protocol import Backend, BackendStatistics

MAX_RUNS = 256
"""Of a map: where uses change more often, several pages are told as one, by their commonest use."""

LOOK_S = 0.5
_RUN = re.compile(r"(.)\1*")


@runtime_checkable
class Paged(Protocol):
    """A backend that knows its pages."""

    async def page_uses(self) -> str:
        """A letter a page; empty where there are too many pages to look at each."""
        ...


class WatchedBackend(PassingBackend):
    """A backend whose statistics say what its pages are used for, as of the last look."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._map = ""

    def statistics(self) -> BackendStatistics:
        """See `Backend`."""
        return replace(self.inner.statistics(), page_map=self._map)

    async def look(self) -> None:
        """Look twice a second, until this is cancelled or there is nothing to look at."""
        while isinstance(self.inner, Paged):
            try:
                self._map = map_of(await self.inner.page_uses())
            except EngineError:
                # It has ended, which is told by whoever wanted something of it.
                return
            await anyio.sleep(LOOK_S)


@asynccontextmanager
async def watched(backend: Backend) -> AsyncGenerator[WatchedBackend]:
    """Look at a backend's pages for as long as the block lasts."""
    one = WatchedBackend(backend)
    async with open_task_group() as tasks:
        tasks.start_soon(one.look)
        try:
            yield one
        finally:
            tasks.cancel_scope.cancel()


def map_of(uses: str) -> str:
    """The map of a letter for each page; at most `MAX_RUNS` runs long."""
    cell = 1
    runs = _runs(uses)
    while len(runs) > MAX_RUNS:
        cell *= 2
        cells = [uses[at : at + cell] for at in range(0, len(uses), cell)]
        runs = _runs("".join(Counter(one).most_common(1)[0][0] * len(one) for one in cells))
    return "".join(f"{run[0]}{len(run)}" for run in runs)


def _runs(uses: str) -> list[str]:
    return [found[0] for found in _RUN.finditer(uses)]
