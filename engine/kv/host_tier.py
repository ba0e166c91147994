"""KV pages in the machine's memory: what was evicted from the pool, to be copied back.

A page goes here when it is evicted, and stays when it is copied back: a page that is evicted again
need not be copied again, since full pages never change. What is here is found by exact tokens, like
what is in the pool. When all slots are full, what was used least lately is forgotten.

Pure bookkeeping: moves are handed out, in the order in which they must be carried out.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NewType, TypeAlias

if TYPE_CHECKING:
    from flowforge.engine.kv.nodes import Node
    from flowforge.engine.kv.pool import PageId
    from flowforge.engine.kv.prefix_tree import Namespace

HostSlot = NewType("HostSlot", int)


@dataclass(frozen=True, slots=True)
class Offload:
    """Copy a page of the pool into a slot of the host."""

    page: PageId
    slot: HostSlot


@dataclass(frozen=True, slots=True)
class Restore:
    """Copy a slot of the host into a page of the pool."""

    slot: HostSlot
    page: PageId


HostMove: TypeAlias = Offload | Restore


@dataclass(eq=False, slots=True)
class HostPage:
    """A page by its tokens and those before it. slot: None where only longer texts are here."""

    tokens: tuple[int, ...]
    parent: HostPage | None  # None: the root of a namespace
    slot: HostSlot | None = None
    children: dict[tuple[int, ...], HostPage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """Pages: slots in all and in use. Counters since the start: pages copied out and back."""

    pages_total: int = 0
    pages_used: int = 0
    offloaded_pages: int = 0
    restored_pages: int = 0


class HostTier:
    """Owns the slots; whoever carries a plan out takes the moves."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, got {num_slots}")
        self._num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._roots: dict[Namespace, HostPage] = {}
        self._by_age: OrderedDict[HostSlot, HostPage] = OrderedDict()
        self._moves: list[HostMove] = []
        self._offloaded_pages = 0
        self._restored_pages = 0

    def keep(self, node: Node) -> None:
        """A node of the tree is about to be evicted: its rows come here, if they are not here."""
        assert node.page is not None, "only a root has no page"
        page = self._find(node)
        if page is None or page.slot is None:
            # Taken first: forgetting the oldest page may remove what is empty above this one.
            slot = self._take_slot()
            page = self._place(node)
            page.slot = slot
            self._moves.append(Offload(node.page, slot))
            self._offloaded_pages += 1
        self._touch(page)

    def following(self, tip: Node, tokens: list[int], page_size: int) -> list[HostPage]:
        """The pages that go on behind a node of the tree with these tokens. Changes only ages.

        A page of them may be forgotten by a later `keep`: look at its slot before using it.
        """
        page = self._find(tip)
        found: list[HostPage] = []
        for start in range(0, len(tokens) - page_size + 1, page_size):
            if page is None:
                break
            page = page.children.get(tuple(tokens[start : start + page_size]))
            if page is None or page.slot is None:
                break
            found.append(page)
        # Leaves first: of a text the end is forgotten before its beginning.
        for one in reversed(found):
            self._touch(one)
        return found

    def restore(self, page: HostPage, target: PageId) -> None:
        """Have a page copied into a page of the pool; it stays here, too."""
        assert page.slot is not None, "the page was forgotten"
        self._moves.append(Restore(page.slot, target))
        self._restored_pages += 1

    def take_moves(self) -> list[HostMove]:
        """The moves since the last call, to be carried out in this order before anything else."""
        moves, self._moves = self._moves, []
        return moves

    def clear(self) -> None:
        """Forget everything: moves were not carried out, so what slots hold is not known."""
        self._free = list(range(self._num_slots - 1, -1, -1))
        self._roots.clear()
        self._by_age.clear()
        self._moves.clear()

    def statistics(self) -> HostStatistics:
        """A snapshot."""
        return HostStatistics(
            self._num_slots, len(self._by_age), self._offloaded_pages, self._restored_pages
        )

    def check_invariants(self) -> None:
        """AssertionError unless every slot is free or of one page that can be found."""
        found: dict[HostSlot, HostPage] = {}
        stack = list(self._roots.values())
        while stack:
            page = stack.pop()
            stack += page.children.values()
            assert page.children or page.slot is not None, "an empty page is kept"
            if page.slot is not None:
                assert page.slot not in found, "a slot has two pages"
                found[page.slot] = page
        assert found == dict(self._by_age), "pages by age are not those by tokens"
        assert sorted([*found, *self._free]) == list(range(self._num_slots)), "a slot is nowhere"

    def _path_of(self, node: Node) -> list[Node]:
        """From below the root to the node."""
        path: list[Node] = []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    def _find(self, node: Node) -> HostPage | None:
        page = self._roots.get(node.namespace)
        for step in self._path_of(node):
            if page is None:
                return None
            page = page.children.get(step.tokens)
        return page

    def _place(self, node: Node) -> HostPage:
        page = self._roots.get(node.namespace)
        if page is None:
            page = self._roots[node.namespace] = HostPage((), None)
        for step in self._path_of(node):
            child = page.children.get(step.tokens)
            if child is None:
                child = page.children[step.tokens] = HostPage(step.tokens, page)
            page = child
        return page

    def _take_slot(self) -> HostSlot:
        if not self._free:
            slot, oldest = self._by_age.popitem(last=False)
            oldest.slot = None
            self._free.append(slot)
            self._prune(oldest)
        return HostSlot(self._free.pop())

    def _prune(self, page: HostPage) -> None:
        while page.slot is None and not page.children and page.parent is not None:
            del page.parent.children[page.tokens]
            page = page.parent
        if page.parent is None and not page.children:
            self._roots = {name: root for name, root in self._roots.items() if root is not page}

    def _touch(self, page: HostPage) -> None:
        assert page.slot is not None, "only pages with a slot have an age"
        self._by_age[page.slot] = page
        self._by_age.move_to_end(page.slot)
