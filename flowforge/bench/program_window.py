"""How many programs are open at once: as many as pages hold.

Programs that wait for tools, or for each other's turn, evict each other's contexts when all are
begun at once (ThunderAgent, arXiv 2602.13692, pauses programs for that reason). So one is begun
when what it will hold at most fits beside what those that are open will hold.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.bench.program_calls import Texts, Workload


@dataclass(frozen=True, slots=True)
class ProgramNeed:
    """num_private: pages that only this program uses, in the mean over the depths of its calls.

    shared: pages that other programs use as well. Open programs are not all at their greatest, and
    a page too many costs less than a program that could have run.
    """

    num_private: int
    shared: frozenset[int]


class ProgramWindow:
    """Which programs may be begun. Programs without a second call have nothing to lose later."""

    def __init__(self, needs: dict[int, ProgramNeed], num_pages: int) -> None:
        self._needs = needs
        self._num_pages = num_pages
        self._open: set[int] = set()
        self._num_private = 0
        self._shared: Counter[int] = Counter()

    def may_open(self, program: int) -> bool:
        """Whether it fits beside those that are open; the first always does."""
        need = self._needs.get(program)
        if need is None or not self._open:
            return True
        num_new = sum(page not in self._shared for page in need.shared)
        num_held = self._num_private + len(self._shared)
        return num_held + need.num_private + num_new <= self._num_pages

    def open(self, program: int) -> None:
        """A program begins."""
        need = self._needs.get(program)
        if need is not None:
            self._open.add(program)
            self._num_private += need.num_private
            self._shared.update(need.shared)

    def close(self, program: int) -> None:
        """A program has ended."""
        need = self._needs.get(program)
        if need is not None:
            self._open.remove(program)
            self._num_private -= need.num_private
            self._shared -= Counter(need.shared)


def program_needs(workload: Workload, texts: Texts, page_size: int) -> dict[int, ProgramNeed]:
    """What the programs of several calls in a row hold. texts: of the lengths that are planned."""
    depth: list[int] = []
    for call in workload.calls:
        depth.append(1 + max((depth[idx] for idx in call.needs), default=-1))
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    users: defaultdict[int, set[int]] = defaultdict(set)
    at_depth: defaultdict[int, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for call in workload.calls:
        tokens = texts.prompts[call.idx] + texts.outputs[call.idx]
        page = 0
        for start in range(0, len(tokens), page_size):
            page = known.setdefault((page, tokens[start : start + page_size]), len(known) + 1)
            users[page].add(call.program)
            at_depth[call.program][depth[call.idx]].add(page)
    return {
        program: ProgramNeed(
            sum(len(users[page]) == 1 for pages in levels.values() for page in pages)
            // len(levels),
            frozenset(page for pages in levels.values() for page in pages if len(users[page]) > 1),
        )
        for program, levels in at_depth.items()
        if len(levels) > 1
    }
