"""Debug mode of the KV rows: free rows hold NaN, written ones are tagged with what they stand for.

A KV row depends on its token and on all tokens before it. So its tag is a hash of just that, and
a row that is read for a sequence must carry the tag of the sequence's own tokens. Wrong matches,
stale tables, copies that were left out and pages freed too early all show as a wrong tag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import numpy as np

from flowforge.engine.kv.host_tier import Offload, Restore
from flowforge.engine.kv.moves import RowCopy
from flowforge.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from flowforge.engine.kv.host_tier import HostSlot
    from flowforge.engine.kv.moves import RowMove
    from flowforge.engine.kv.pool import PageId
    from flowforge.engine.kv.prefix_tree import Namespace

_UNWRITTEN = 0
_MASK = 2**64 - 1


class KvAudit:
    """Owns a tag for each row. poison: fills the rows of free pages with NaN.

    A page may be freed while the same plan still copies rows out of it, and be taken again by that
    plan. So what was freed is struck out when the plan's copies are done, unless it has an owner.
    """

    def __init__(
        self, num_pages: int, page_size: int, poison: Callable[[list[PageId]], None]
    ) -> None:
        self._page_size = page_size
        self._tags = np.full(num_pages * page_size, _UNWRITTEN, dtype=np.uint64)
        self._tags_of_host: dict[HostSlot, npt.NDArray[np.uint64]] = {}
        self._poison = poison
        self._freed: list[PageId] = []

    def note_freed(self, pages: list[PageId]) -> None:
        """Pages became free; see `PagePool`."""
        self._freed += pages

    def moved(self, moves: Iterable[RowMove], is_free: Callable[[PageId], bool]) -> None:
        """A step's moves were carried out, in this order; its forward pass comes next."""
        for move in moves:
            match move:
                case RowCopy(source, target, num_rows):
                    self._tags_of_page(target)[:num_rows] = self._tags_of_page(source)[:num_rows]
                case Offload(page, slot):
                    self._tags_of_host[slot] = self._tags_of_page(page).copy()
                case Restore(slot, page):
                    self._tags_of_page(page)[:] = self._tags_of_host[slot]
                case _:
                    assert_never(move)
        free = [page for page in self._freed if is_free(page)]
        self._freed.clear()
        for page in free:
            start = page * self._page_size
            self._tags[start : start + self._page_size] = _UNWRITTEN
        self._poison(free)

    def _tags_of_page(self, page: PageId) -> npt.NDArray[np.uint64]:
        start = page * self._page_size
        return self._tags[start : start + self._page_size]

    def read_and_written(
        self, namespace: Namespace, tokens: list[int], slots: npt.NDArray[np.int64], start: int
    ) -> None:
        """A forward pass is about to read rows of a text and to write those from `start` on.

        slots: the row of each of `tokens`, int64 [len(tokens)]. O(len(tokens)).
        Raises InternalError IN203 for a row that stands for something else.
        """
        expected = _tags_of(namespace, tokens)
        wrong = np.flatnonzero(self._tags[slots[:start]] != expected[:start])
        if wrong.size:
            position = int(wrong[0])
            slot = int(slots[position])
            held = "no token" if self._tags[slot] == _UNWRITTEN else "another text's token"
            raise InternalError(
                "IN203",
                f"KV row {slot} (page {slot // self._page_size}) is read for token {position} of a "
                f"sequence and holds {held}",
                help="this is a defect of FlowForge's KV cache: please report it",
            )
        self._tags[slots[start:]] = expected[start:]


def _tags_of(namespace: Namespace, tokens: list[int]) -> npt.NDArray[np.uint64]:
    tags = np.empty(len(tokens), dtype=np.uint64)
    tag = hash(namespace)
    for position, token in enumerate(tokens):
        tag = hash((tag, token))
        tags[position] = (tag & _MASK) or 1
    return tags
