"""The prefix tree: pages of KV keyed by the exact tokens that lead to them.

A radix tree whose edges are one page long. A node is one full, immutable page; its key in the
parent is the tuple of the page's token ids, so a hit is equality of tokens and never of hashes.
Edges of one page need no splits: the operation where other engines lose pages does not exist. Under
a node hang tails: pages filled in part, written by one live path or kept from an ended one. A
tail's rows can be copied into a new page, so a match is exact to the token and not to the page.

Sources: RadixAttention (SGLang, arXiv 2312.07104) for the tree; Pie (arXiv 2510.24051) for counts
of live paths through a node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

from flowforge.engine.kv.tokens import common_prefix_len

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.engine.kv.pool import PageId


@dataclass(frozen=True, slots=True)
class Namespace:
    """Whose prefixes may be shared: paths of different namespaces never see each other's pages.

    Fields are compared one by one and never joined into a string, so parts cannot run together.
    """

    model_revision: str = ""
    adapter: str = ""
    salt: str = ""


@dataclass(eq=False, slots=True)
class Node:
    """One full page in the tree. Immutable tokens and page; the counts change.

    num_paths: live paths through this node. 0 means cached: it may be evicted once it is a leaf.
    """

    tokens: tuple[int, ...]
    page: PageId | None  # None: the root of a namespace, which holds no page
    parent: Node | None  # None: a root, or evicted
    depth: int  # pages from the root
    last_use: int = 0
    num_paths: int = 0
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    tails: list[Tail] = field(default_factory=list)

    @property
    def is_evictable(self) -> bool:
        """Whether this is a page that no path runs through and nothing hangs under."""
        return (
            self.parent is not None and self.num_paths == 0 and not self.children and not self.tails
        )

    def donors(self) -> Iterator[Donor]:
        """What hangs under this node and has rows to copy from."""
        yield from self.children.values()
        yield from self.tails


@dataclass(eq=False, slots=True)
class Tail:
    """A page filled in part: the rows of `tokens` are written, fewer than a page.

    is_live: one live path owns it and appends to it; else it is cached, to be adopted or evicted.
    """

    tokens: list[int]
    page: PageId
    parent: Node
    last_use: int = 0
    is_live: bool = True
    is_evicted: bool = False

    @property
    def is_evictable(self) -> bool:
        """Whether no live path writes here."""
        return not self.is_live and not self.is_evicted


Donor: TypeAlias = Node | Tail


@dataclass(frozen=True, slots=True)
class Match:
    """What the tree holds of some tokens.

    nodes: full pages to walk, in order. donor, num_donor_tokens: a page whose first rows go on from
    there; 0 rows when there is none. num_tokens: all that is matched, from where it started.
    """

    nodes: tuple[Node, ...]
    donor: Donor | None
    num_donor_tokens: int
    num_tokens: int


class PrefixTree:
    """Owns the shape of the tree and the order of eviction; its owner frees returned pages."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._roots: dict[Namespace, Node] = {}
        self._clock = 0
        self._num_cached = 0
        # (last_use, tie-break, item); an entry is stale when the item was used since or is locked.
        self._eviction_heap: list[tuple[int, int, Donor]] = []
        self._num_pushed = 0

    @property
    def num_cached(self) -> int:
        """Pages in the tree that no live path holds: all of them can be evicted, leaves first."""
        return self._num_cached

    def root(self, namespace: Namespace) -> Node:
        """Where the paths of a namespace start."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node((), None, None, depth=0)
        return root

    def match(self, start: Node, tokens: list[int], limit: int) -> Match:
        """The longest known run of `tokens` under `start`, at most `limit`. Changes nothing."""
        nodes: list[Node] = []
        node, known = start, 0
        while known + self.page_size <= limit:
            child = node.children.get(tuple(tokens[known : known + self.page_size]))
            if child is None:
                break
            nodes.append(child)
            node, known = child, known + self.page_size
        donor, num_donor = self._best_donor(
            node, tokens[known : min(limit, known + self.page_size)]
        )
        return Match(tuple(nodes), donor, num_donor, known + num_donor)

    def insert(self, parent: Node, tokens: tuple[int, ...], page: PageId) -> tuple[Node, bool]:
        """Put a full page under `parent`; returns the node that now stands for these tokens.

        Consumes the page: when the node existed already (False), the caller must go on with the
        node's page and free its own. The node comes back without a path through it: hold it.
        """
        known = parent.children.get(tokens)
        if known is not None:
            return known, False
        node = Node(tokens, page, parent, depth=parent.depth + 1, last_use=self._tick())
        parent.children[tokens] = node
        self._num_cached += 1
        self._push(node)
        return node, True

    def hold(self, node: Node) -> None:
        """Count one more live path through this node (its ancestors are held by the same path)."""
        if node.num_paths == 0 and node.page is not None:
            self._num_cached -= 1
        node.num_paths += 1
        node.last_use = self._tick()

    def let_go(self, node: Node) -> None:
        """Count one live path less."""
        assert node.num_paths > 0, "a node was let go more often than held"
        node.num_paths -= 1
        if node.num_paths == 0 and node.page is not None:
            self._num_cached += 1
            self._push(node)

    def attach(self, parent: Node, tokens: list[int], page: PageId) -> Tail:
        """Hang a live, partly filled page under a node. The tail keeps the list `tokens`."""
        tail = Tail(tokens, page, parent, last_use=self._tick())
        parent.tails.append(tail)
        return tail

    def detach(self, tail: Tail) -> None:
        """Take a live tail out of the tree: its page is the caller's again."""
        assert tail.is_live, "only a live tail has an owner to go to"
        tail.parent.tails.remove(tail)
        self._push(tail.parent)

    def cache_tail(self, tail: Tail) -> list[PageId]:
        """Keep the tail of an ended path for others; returns pages that are now of no use.

        The rows of a tail that another donor holds too, or of a shorter tail, are not kept twice.
        """
        tail.parent.tails.remove(tail)
        rows = tuple(tail.tokens)
        for donor in tail.parent.donors():
            if rows == tuple(donor.tokens[: len(rows)]):
                self._push(tail.parent)
                return [tail.page]
        shorter = [
            other
            for other in tail.parent.tails
            if other.is_evictable and tuple(other.tokens) == rows[: len(other.tokens)]
        ]
        useless = [self._drop_tail(other) for other in shorter]
        tail.is_live = False
        tail.last_use = self._tick()
        tail.parent.tails.append(tail)
        self._num_cached += 1
        self._push(tail)
        return useless

    def adopt(self, tail: Tail) -> None:
        """Give a cached tail a live owner again, who appends to it."""
        assert tail.is_evictable, "a live or evicted tail cannot be adopted"
        tail.is_live = True
        tail.last_use = self._tick()
        self._num_cached -= 1

    def touch(self, item: Donor) -> None:
        """Note that rows of this page were read just now."""
        item.last_use = self._tick()
        self._push(item)

    def evict(self, count: int, *, keep: Donor | None = None) -> list[PageId]:
        """Drop cached pages, least recently used first, leaves before their parents.

        Returns `count` pages, or all there are if fewer; the caller frees them. `keep` stays.
        """
        pages: list[PageId] = []
        kept: list[tuple[int, int, Donor]] = []
        while len(pages) < count and self._eviction_heap:
            entry = heappop(self._eviction_heap)
            last_use, _, item = entry
            if not item.is_evictable or item.last_use != last_use:
                continue
            if item is keep:
                kept.append(entry)
                continue
            pages.append(self._drop_tail(item) if isinstance(item, Tail) else self._drop_node(item))
        for entry in kept:
            heappush(self._eviction_heap, entry)
        return pages

    def nodes(self) -> Iterator[Node]:
        """Every node that holds a page, parents before children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.page is not None:
                yield node
            stack.extend(node.children.values())

    def tails(self) -> Iterator[Tail]:
        """Every tail, live or cached."""
        for root in self._roots.values():
            yield from root.tails
        for node in self.nodes():
            yield from node.tails

    def check_invariants(self) -> None:
        """AssertionError on a broken shape, a wrong count or an evictable page out of sight."""
        in_heap = {(use, id(item)) for use, _, item in self._eviction_heap}
        num_cached = 0
        for node in self.nodes():
            assert len(node.tokens) == self.page_size, "a node does not hold one full page"
            assert node.parent is not None, "a page without a parent"
            assert node.parent.children.get(node.tokens) is node, "a node is not under its own key"
            through_children = sum(child.num_paths for child in node.children.values())
            assert node.num_paths >= through_children, "a path runs through a child alone"
            num_cached += node.num_paths == 0
            assert not node.is_evictable or (node.last_use, id(node)) in in_heap, "leaf lost"
        for tail in self.tails():
            assert 0 < len(tail.tokens) < self.page_size, "a tail is empty or full"
            assert not tail.is_evicted, "an evicted tail is still attached"
            num_cached += not tail.is_live
            assert tail.is_live or (tail.last_use, id(tail)) in in_heap, "tail lost"
        assert num_cached == self._num_cached, f"cached: {num_cached} != {self._num_cached}"

    def _best_donor(self, node: Node, tokens: list[int]) -> tuple[Donor | None, int]:
        best: Donor | None = None
        best_len = 0
        if not tokens:
            return None, 0
        for donor in node.donors():
            if donor.tokens[0] != tokens[0]:
                continue
            shared = common_prefix_len(list(donor.tokens), tokens)
            if shared > best_len:
                best, best_len = donor, shared
        return best, best_len

    def _drop_node(self, node: Node) -> PageId:
        assert node.parent is not None and node.page is not None
        del node.parent.children[node.tokens]
        self._num_cached -= 1
        self._push(node.parent)
        node.parent = None
        return node.page

    def _drop_tail(self, tail: Tail) -> PageId:
        tail.parent.tails.remove(tail)
        tail.is_evicted = True
        self._num_cached -= 1
        self._push(tail.parent)
        return tail.page

    def _push(self, item: Donor) -> None:
        if item.is_evictable:
            self._num_pushed += 1
            heappush(self._eviction_heap, (item.last_use, self._num_pushed, item))
            if len(self._eviction_heap) > 64 + 4 * self._num_cached:
                self._drop_stale_entries()

    def _drop_stale_entries(self) -> None:
        fresh = {
            id(entry[2]): entry
            for entry in self._eviction_heap
            if entry[2].is_evictable and entry[2].last_use == entry[0]
        }
        self._eviction_heap = list(fresh.values())
        heapify(self._eviction_heap)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
