"""The page pool: which pages are free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from collections.abc import Callable

PageId = NewType("PageId", int)

_FREE = 1
_TAKEN = 0


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Counts in pages."""

    num_pages: int
    num_free: int


class PagePool:
    """Hands out page ids and takes them back; prefers runs of adjacent pages.

    Adjacent pages are adjacent rows of the KV tensors, so a prefix in one run is read as a view and
    not gathered. The pool knows only free and taken: who took a page is the tree's and the paths'
    knowledge. on_free: told of pages that nobody owns any more, for debugging.
    """

    def __init__(
        self, num_pages: int, on_free: Callable[[list[PageId]], None] | None = None
    ) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages must be at least 1, got {num_pages}")
        self._state = bytearray([_FREE]) * num_pages
        self._num_free = num_pages
        self._on_free = on_free

    @property
    def num_pages(self) -> int:
        """All pages, free or not."""
        return len(self._state)

    @property
    def num_free(self) -> int:
        """Pages that `allocate` can give without anyone returning any."""
        return self._num_free

    def allocate(self, count: int, *, after: PageId | None = None) -> list[PageId]:
        """Take `count` pages, the ones right behind `after` if those are free.

        Else the first run that is long enough, else the lowest free pages. The caller owns them.
        Raises ValueError when fewer than `count` are free: check `num_free` first.
        """
        if count > self._num_free:
            raise ValueError(f"{count} pages asked, {self._num_free} free")
        taken = self._take_behind(after, count) if after is not None else []
        run_start = self._state.find(bytes([_FREE]) * (count - len(taken)))
        while len(taken) < count:
            page = run_start if run_start >= 0 else self._state.find(_FREE)
            taken.append(self._take(page))
            run_start = run_start + 1 if run_start >= 0 else run_start
        return taken

    def release(self, pages: list[PageId]) -> None:
        """Give pages back. Raises ValueError for a page that is free already."""
        for page in pages:
            if self._state[page] == _FREE:
                raise ValueError(f"page {page} is free already")
            self._state[page] = _FREE
            self._num_free += 1
        if self._on_free is not None and pages:
            self._on_free(pages)

    def is_free(self, page: PageId) -> bool:
        """Whether nobody owns the page."""
        return self._state[page] == _FREE

    def statistics(self) -> PoolStatistics:
        """A snapshot."""
        return PoolStatistics(num_pages=self.num_pages, num_free=self._num_free)

    def check_invariants(self) -> None:
        """AssertionError if the free count and the page states disagree."""
        assert self._num_free == self._state.count(_FREE), "free count differs from page states"

    def __repr__(self) -> str:
        return f"PagePool(used={self.num_pages - self._num_free}/{self.num_pages})"

    def _take(self, page: int) -> PageId:
        self._state[page] = _TAKEN
        self._num_free -= 1
        return PageId(page)

    def _take_behind(self, after: PageId, count: int) -> list[PageId]:
        end = after + 1
        while end < len(self._state) and end - after - 1 < count and self._state[end] == _FREE:
            end += 1
        return [self._take(page) for page in range(after + 1, end)]
