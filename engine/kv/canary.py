"""A canary for debugging: pages that nobody owns hold NaN, so a wrong read shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.engine.kv.pool import PageId


class PageCanary:
    """Collects the pages that become free and has them filled when nothing needs them any more.

    A page may be freed while the same plan still copies rows out of it, and be taken again by that
    plan. So filling waits until the plan's copies are done, and passes over pages with an owner.
    """

    def __init__(self, fill: Callable[[list[PageId]], None]) -> None:
        self._fill = fill
        self._freed: list[PageId] = []

    def note(self, pages: list[PageId]) -> None:
        """Pages became free."""
        self._freed += pages

    def fill(self, is_free: Callable[[PageId], bool]) -> None:
        """Fill those that are free now; between a step's copies and its forward pass."""
        self._fill([page for page in self._freed if is_free(page)])
        self._freed.clear()
