"""The order of eviction: a heap of what may be evicted, with lazy deletion."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Key = tuple[float, float, float, int]
ItemT = TypeVar("ItemT")

# Stale entries are dropped all together once there are so many for each that counts.
_MOST_STALE_PER_ITEM = 4
_FEW = 64


class EvictionOrder(Generic[ItemT]):
    """Items by key, the least first. Adding and taking cost O(log n), amortised.

    key: an item's key as it is now, or None when it may not be evicted. An entry whose key is no
    longer the item's is stale and passed over, so whoever changes a key adds the item again.
    """

    def __init__(self, key: Callable[[ItemT], Key | None]) -> None:
        self._key = key
        self._heap: list[tuple[Key, int, ItemT]] = []
        self._num_added = 0

    def add(self, item: ItemT, num_items: int) -> None:
        """Give an item its place, if it may be evicted. num_items: how many could have one."""
        key = self._key(item)
        if key is None:
            return
        self._num_added += 1
        heappush(self._heap, (key, self._num_added, item))
        if len(self._heap) > _FEW + _MOST_STALE_PER_ITEM * num_items:
            self._drop_stale_entries()

    def take(self, *, keep: ItemT | None = None) -> ItemT | None:
        """Remove and return the first, `keep` passed over; None when there is none."""
        kept: tuple[Key, int, ItemT] | None = None
        found: ItemT | None = None
        while self._heap and found is None:
            entry = heappop(self._heap)
            if entry[0] != self._key(entry[2]):
                continue
            if entry[2] is keep:
                kept = entry
            else:
                found = entry[2]
        if kept is not None:
            heappush(self._heap, kept)
        return found

    def holds(self) -> set[tuple[Key, int]]:
        """(key, id of the item) of every entry, for checking."""
        return {(key, id(item)) for key, _, item in self._heap}

    def _drop_stale_entries(self) -> None:
        fresh = {id(entry[2]): entry for entry in self._heap if entry[0] == self._key(entry[2])}
        self._heap = list(fresh.values())
        heapify(self._heap)
