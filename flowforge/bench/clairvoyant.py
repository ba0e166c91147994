"""What a run would compute if it knew the future: the least that its eviction could come to.

Bélády's rule (IBM Systems Journal 5, 1966): of what may go, that goes whose next use is farthest.
It is applied to the accesses of a real run in their order, with what ran at the same time in place.
A row's next use is never later than that of the rows behind it, so the rule keeps to the tree. Rows
count one by one here and not by pages, which no cache of pages reaches.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from flowforge.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flowforge.bench.program_calls import Texts, Workload
    from flowforge.bench.step_log import Progress, StepLog

_NEVER = 1 << 60


def clairvoyant_tokens(workload: Workload, texts: Texts, log: StepLog, num_pages: int) -> int:
    """Prompt tokens, and output tokens again, that the run would have computed.

    texts: what was really said. log: of the run, to be held to so many pages.
    """
    paths = _Paths(workload, texts)
    accesses = list(_accesses(log))
    uses: list[list[int]] = [[] for _ in range(paths.num_rows)]
    for position, (begun, _) in enumerate(accesses):
        for one in begun:
            for row in paths.rows(one.call_idx, one.num_tokens):
                uses[row].append(position)
    cache = _Cache(paths.parents, uses, num_pages * log.page_size)
    for position, (begun, over) in enumerate(accesses):
        cache.position = position
        for call_idx in over:
            cache.let_go(call_idx)
        for one in begun:
            cache.begin(one.call_idx, paths.rows(one.call_idx, one.num_tokens))
        for one in log.steps[position]:
            cache.grow(one.call_idx, paths.rows(one.call_idx, one.num_tokens))
    return cache.num_computed


class _Paths:
    """The rows of all calls as a tree: a row is a number, the same text has the same rows."""

    def __init__(self, workload: Workload, texts: Texts) -> None:
        known: dict[tuple[int, int], int] = {}
        self.parents = [-1]
        self._rows: list[list[int]] = []
        self._prompt_lens: list[int] = []
        for call in workload.calls:
            prompt = texts.prompts[call.idx]
            rows, row = list[int](), 0
            for token in prompt + texts.outputs[call.idx][:-1]:
                before = row
                row = known.setdefault((before, token), len(self.parents))
                if row == len(self.parents):
                    self.parents.append(before)
                rows.append(row)
            self._rows.append(rows)
            self._prompt_lens.append(len(prompt))

    @property
    def num_rows(self) -> int:
        """Distinct ones, and the root."""
        return len(self.parents)

    def rows(self, call_idx: int, num_tokens: int) -> list[int]:
        """Those of a call that is so far: of the whole prompt at least."""
        return self._rows[call_idx][: max(num_tokens, self._prompt_lens[call_idx])]


class _Cache:
    """Rows that are there; those of running calls stay."""

    def __init__(self, parents: list[int], uses: list[list[int]], num_rows: int) -> None:
        self._parents = parents
        self._uses = uses
        self._num_free = num_rows
        self._num_pins = [0] * len(parents)
        self._num_below = [0] * len(parents)
        self._is_there = bytearray(len(parents))
        self._pinned: dict[int, list[int]] = {}
        self._leaves: list[tuple[int, int]] = []
        self.position = 0
        self.num_computed = 0

    def begin(self, call_idx: int, rows: list[int]) -> None:
        """A call runs from now on; what is not there of its rows is computed."""
        held = self._pinned[call_idx] = []
        num_known = next((i for i, row in enumerate(rows) if not self._is_there[row]), len(rows))
        self._pin(held, rows[:num_known])
        self._add(held, rows[num_known:])
        self.num_computed += len(rows) - num_known

    def grow(self, call_idx: int, rows: list[int]) -> None:
        """A call that runs has written more."""
        held = self._pinned[call_idx]
        self._add(held, rows[len(held) :])

    def let_go(self, call_idx: int) -> None:
        """A call runs no longer."""
        for row in self._pinned.pop(call_idx):
            self._num_pins[row] -= 1
            self._offer(row)

    def _pin(self, held: list[int], rows: list[int]) -> None:
        for row in rows:
            self._num_pins[row] += 1
        held += rows

    def _add(self, held: list[int], rows: list[int]) -> None:
        self._pin(held, rows)
        for row in rows:
            if self._is_there[row]:
                continue
            if self._num_free == 0:
                self._evict()
            self._is_there[row] = 1
            self._num_free -= 1
            self._num_below[self._parents[row]] += 1

    def _next_use(self, row: int) -> int:
        uses = self._uses[row]
        place = bisect_right(uses, self.position)
        return uses[place] if place < len(uses) else _NEVER

    def _may_go(self, row: int) -> bool:
        return bool(
            row and self._is_there[row] and not self._num_pins[row] and not self._num_below[row]
        )

    def _offer(self, row: int) -> None:
        if self._may_go(row):
            heappush(self._leaves, (-self._next_use(row), row))

    def _evict(self) -> None:
        """Lazy: a row's next use changes only while it is pinned, and then it is offered anew."""
        while self._leaves:
            when, row = heappop(self._leaves)
            if not self._may_go(row) or -when != self._next_use(row):
                continue
            self._is_there[row] = 0
            self._num_free += 1
            parent = self._parents[row]
            self._num_below[parent] -= 1
            self._offer(parent)
            return
        raise InternalError("IN541", "a run held more rows than its pages have")


def _accesses(log: StepLog) -> Iterator[tuple[list[Progress], Iterable[int]]]:
    """Of each step: who runs that did not in the one before, and who no longer does."""
    before: set[int] = set()
    for step in log.steps:
        running = {one.call_idx for one in step}
        yield [one for one in step if one.call_idx not in before], before - running
        before = running
