"""The KV pages of a run as cells of a map, each with what its pages are used for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

PageUse = Literal["free", "private", "tree", "shared", "cached"]
"""private: of one conversation. tree, shared: of the prefix tree, with one conversation on it, with
several. cached: of the tree with none, until its page is needed."""

PAGE_USES: tuple[PageUse, ...] = ("shared", "tree", "private", "cached", "free")
_BY_LETTER: Mapping[str, PageUse] = {one[0]: one for one in PAGE_USES}
_FREE: PageUse = "free"
_RUN = re.compile(r"([a-z])(\d+)")


@dataclass(frozen=True, slots=True)
class PageMap:
    """cells: from the first page on. pages_per_cell: a cell of several shows their commonest use.

    counts: pages of each use.
    """

    cells: tuple[PageUse, ...]
    pages_per_cell: int
    counts: Mapping[PageUse, int]

    @property
    def num_pages(self) -> int:
        """All pages."""
        return sum(self.counts.values())


def page_map(told: str, max_cells: int) -> PageMap | None:
    """The map of a sample (see `backends.page_maps`) in at most so many cells; None without pages.

    Letters that this version does not know count as free.
    """
    found: list[tuple[str, str]] = _RUN.findall(told)
    runs: list[tuple[PageUse, int]] = [
        (_BY_LETTER.get(letter, _FREE), int(num)) for letter, num in found
    ]
    num_pages = sum(num for _, num in runs)
    if not num_pages:
        return None
    per_cell = max(1, -(-num_pages // max(1, max_cells)))
    cells: list[PageUse] = []
    cell: dict[PageUse, int] = {}
    num_left = per_cell
    for use, num in runs:
        rest = num
        while rest:
            taken = min(rest, num_left)
            cell[use] = cell.get(use, 0) + taken
            rest, num_left = rest - taken, num_left - taken
            if not num_left:
                cells.append(_commonest(cell))
                cell, num_left = {}, per_cell
    if cell:
        cells.append(_commonest(cell))
    counts: dict[PageUse, int] = dict.fromkeys(PAGE_USES, 0)
    for use, num in runs:
        counts[use] += num
    return PageMap(tuple(cells), per_cell, counts)


def without_free_end(told: str) -> str:
    """The sample without the free pages behind the last one that is used."""
    return re.sub(r"f\d+$", "", told)


def _commonest(cell: Mapping[PageUse, int]) -> PageUse:
    """Of equally common ones the first of `PAGE_USES`; a page in use is not hidden by free ones."""
    commonest: PageUse = "free"
    for use in PAGE_USES:
        is_more = cell.get(use, 0) > cell.get(commonest, 0)
        if use != "free" and use in cell and (commonest == "free" or is_more):
            commonest = use
    return commonest
