"""The prefix tree: pages of KV keyed by the exact tokens that lead to them.

A radix tree whose edges are one page long. A node is one full, immutable page; its key in the
parent is the tuple of the page's token ids, so a hit is equality of tokens and never of hashes.
Edges of one page need no splits: the operation where other engines lose pages does not exist. Under
a node hang tails: pages filled in part, written by one live path or kept from an ended one. A
tail's rows can be copied into a new page, so a match is exact to the token and not to the page.

Eviction takes leaves in the order of (priority, steps to the next use, expected time of it, last
use). What is known of
the next use are the expectations of live sequences. Each sits at one node only, the deepest of its
tokens: what is above is no leaf before that one is gone, and then it moves up; when a deeper page
of its tokens comes into the tree, it moves down.

Sources: RadixAttention (SGLang, arXiv 2312.07104) for the tree; Pie (arXiv 2510.24051) for counts
of live paths through a node; KVFlow (arXiv 2507.07400) for steps to the next use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.arguments import require
from flowforge.engine.kv.eviction import EvictionOrder
from flowforge.engine.kv.expectation import UNCLAIMED
from flowforge.engine.kv.nodes import Match, Node, Tail
from flowforge.engine.kv.tokens import common_prefix_len

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flowforge.engine.kv.eviction import Key
    from flowforge.engine.kv.expectation import Expectation
    from flowforge.engine.kv.nodes import Donor
    from flowforge.engine.kv.pool import PageId


@dataclass(frozen=True, slots=True)
class Namespace:
    """Whose prefixes may be shared: paths of different namespaces never see each other's pages.

    Fields are compared one by one and never joined into a string, so parts cannot run together.
    Raises EngineError EN210 for one that is no text.
    """

    model_revision: str = ""
    adapter: str = ""
    salt: str = ""

    def __post_init__(self) -> None:
        for name in ("model_revision", "adapter", "salt"):
            value: object = getattr(self, name)
            require(isinstance(value, str), f"the {name} of a namespace", "a text", value)


class PrefixTree:
    """Owns the shape of the tree and the order of eviction; its owner frees returned pages.

    on_evict: told of a full page that is about to be evicted.
    """

    def __init__(self, page_size: int, on_evict: Callable[[Node], None] | None = None) -> None:
        self.page_size = page_size
        self._on_evict = on_evict
        self._roots: dict[Namespace, Node] = {}
        self._clock = 0
        self._num_cached = 0
        self._eviction: EvictionOrder[Donor] = EvictionOrder(self._key)

    @property
    def num_cached(self) -> int:
        """Pages in the tree that no live path holds: all of them can be evicted, leaves first."""
        return self._num_cached

    @property
    def num_namespaces(self) -> int:
        """Namespaces that have a page, a path or an expectation."""
        return len(self._roots)

    def enter(self, namespace: Namespace) -> Node:
        """The root of a namespace, with one more path from it: `leave` it."""
        root = self._root(namespace)
        root.num_paths += 1
        return root

    def leave(self, root: Node) -> None:
        """Count one path less from a root."""
        root.num_paths -= 1
        self._prune(root)

    def match(self, namespace: Namespace, tokens: list[int], limit: int) -> Match:
        """The longest known run of `tokens`, at most `limit`. Changes nothing."""
        root = self._roots.get(namespace)
        return self.match_under(root, tokens, limit) if root is not None else Match((), None, 0, 0)

    def match_under(self, start: Node, tokens: list[int], limit: int) -> Match:
        """As `match`, where the tokens go on from a node. Changes nothing."""
        nodes = self._walk(start, tokens, limit)
        known = len(nodes) * self.page_size
        donor, num_donor = self._best_donor(
            nodes[-1] if nodes else start, tokens[known : min(limit, known + self.page_size)]
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
        node = Node(tokens, page, parent, parent.depth + 1, parent.namespace, self._tick())
        parent.hang(node)
        self._num_cached += 1
        self._push(node)
        below = [one for one in parent.expectations if self._goes_on(one, parent, tokens)]
        self._move_all(below, node)
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
        """Hang a live page under a node, with at least one row. It keeps the list `tokens`."""
        tail = Tail(tokens, page, parent, last_use=self._tick())
        parent.hang(tail)
        return tail

    def detach(self, tail: Tail) -> None:
        """Take a live tail out of the tree: its page is the caller's again."""
        assert tail.is_live, "only a live tail has an owner to go to"
        tail.parent.take_away(tail)
        self._push(tail.parent)

    def cache_tail(self, tail: Tail) -> list[PageId]:
        """Keep the tail of an ended path for others; returns pages that are now of no use.

        The rows of a tail that another donor holds too, or of a shorter tail, are not kept twice.
        """
        tail.parent.take_away(tail)
        rows = tuple(tail.tokens)
        for donor in tail.parent.donors(rows):
            if rows == tuple(donor.tokens[: len(rows)]):
                donor.may_return |= tail.may_return
                self._push(tail.parent)
                return [tail.page]
        shorter = [
            other
            for other in tail.parent.donors(rows)
            if isinstance(other, Tail)
            and other.is_evictable
            and tuple(other.tokens) == rows[: len(other.tokens)]
        ]
        useless = [self._drop(other) for other in shorter]
        tail.is_live = False
        tail.may_return |= any(other.may_return for other in shorter)
        tail.last_use = self._tick()
        tail.parent.hang(tail)
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

    def place(self, expectation: Expectation) -> None:
        """Let an expectation count, from the deepest page of its tokens on. Place it but once."""
        assert expectation.node is None, "an expectation was placed twice"
        root = self._root(expectation.namespace)
        nodes = self._walk(root, expectation.tokens, len(expectation.tokens))
        self._move_all([expectation], nodes[-1] if nodes else root)

    def restate(self, expectation: Expectation) -> None:
        """Something was changed in a placed expectation, its tokens aside."""
        if expectation.node is not None:
            self._reorder(expectation.node, expectation)

    def withdraw(self, expectation: Expectation) -> None:
        """Let a placed expectation count no longer."""
        node, expectation.node = expectation.node, None
        if node is not None:
            del node.expectations[expectation]
            self._reorder(node, expectation)

    def conclude(self, expectation: Expectation) -> list[PageId]:
        """Withdraw a placed expectation for good: its sequence has ended.

        Where its holder said that it was the last use, the leaves of its tokens that served nobody
        else are dropped: their pages are returned for the caller to free. Else all of its pages are
        marked as what may be needed again.
        """
        node = expectation.node
        assert node is not None, "only a placed expectation is concluded"
        tails = self._tails_along(expectation, node)
        self.withdraw(expectation)
        if expectation.is_last:
            return self._drop_unneeded(node, tails)
        for tail in tails:
            tail.may_return = True
        # Above a marked page all are marked.
        while node.parent is not None and not node.may_return:
            node.may_return = True
            node = node.parent
        return []

    def evict(self, count: int, *, keep: Donor | None = None) -> list[PageId]:
        """Drop cached pages, leaves before their parents, those of the least worth first.

        The order: pages that no live sequence expects to use, by last use; then by the priority of
        who does, lowest first, by its steps to the next use, farthest first, by when that is
        expected, latest first, and by last use.
        Returns `count` pages, or all there are if fewer; the caller frees them. `keep` stays.
        """
        pages: list[PageId] = []
        while len(pages) < count:
            item = self._eviction.take(keep=keep)
            if item is None:
                break
            if self._on_evict is not None and isinstance(item, Node):
                self._on_evict(item)
            pages.append(self._drop(item))
        return pages

    def drop_all(self, nodes: Sequence[Node]) -> list[PageId]:
        """Drop pages that do not hold what they stand for; returns those, for the caller to free.

        nodes: each without a path through it, and without a page under it but those before it here.
        """
        assert all(node.num_paths == 0 for node in nodes), "a path reads rows that are not there"
        return [self._drop(node) for node in nodes]

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
        num_cached = 0
        for node in self.nodes():
            assert len(node.tokens) == self.page_size, "a node does not hold one full page"
            assert node.parent is not None, "a page without a parent"
            assert node.parent.children.get(node.tokens) is node, "a node is not under its own key"
            num_cached += node.num_paths == 0
        for tail in self.tails():
            assert 0 < len(tail.tokens) < self.page_size, "a tail is empty or full"
            assert not tail.is_evicted, "an evicted tail is still attached"
            num_cached += not tail.is_live
        for node in [*self._roots.values(), *self.nodes()]:
            through_children = sum(child.num_paths for child in node.children.values())
            assert node.num_paths >= through_children, "a path runs through a child alone"
            hanging = [*node.children.values(), *node.tails]
            by_first = [one for group in node.by_first.values() for one in group]
            assert set(hanging) == set(by_first), "what hangs under a node is not by first token"
            for expectation in node.expectations:
                deepest = self._walk(node, expectation.tokens[node.depth * self.page_size :])
                assert expectation.node is node, "an expectation is elsewhere"
                assert not deepest, "an expectation does not sit at its deepest page"
        assert num_cached == self._num_cached, f"cached: {num_cached} != {self._num_cached}"
        in_order = self._eviction.holds()
        items: list[Donor] = [*self.nodes(), *self.tails()]
        for item in items:
            key = self._key(item)
            assert key is None or (key, id(item)) in in_order, "an evictable page is lost"
            above = item.parent
            is_marked = above is None or above.page is None or above.may_return
            assert is_marked or not item.may_return, "a mark ends below the first page"
        assert not any(_is_empty(root) for root in self._roots.values()), "an empty root is kept"

    def _root(self, namespace: Namespace) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node((), None, None, 0, namespace)
        return root

    def _prune(self, node: Node) -> None:
        if node.page is None and _is_empty(node):
            self._roots.pop(node.namespace, None)

    def _walk(self, node: Node, tokens: list[int], limit: int | None = None) -> list[Node]:
        """The full pages of `tokens`, at most to token `limit`, under a node."""
        nodes: list[Node] = []
        size = self.page_size
        for start in range(0, (len(tokens) if limit is None else limit) - size + 1, size):
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            nodes.append(child)
            node = child
        return nodes

    def _best_donor(self, node: Node, tokens: list[int]) -> tuple[Donor | None, int]:
        best: Donor | None = None
        best_len = 0
        for donor in node.donors(tokens):
            shared = common_prefix_len(list(donor.tokens), tokens)
            if shared > best_len:
                best, best_len = donor, shared
        return best, best_len

    def _drop(self, item: Donor) -> PageId:
        parent, page = item.parent, item.page
        assert parent is not None and page is not None, "a root or an evicted node is not dropped"
        parent.take_away(item)
        if isinstance(item, Tail):
            item.is_evicted = True
        else:
            item.parent = None
            self._move_all(list(item.expectations), parent)
        self._num_cached -= 1
        self._push(parent)
        self._prune(parent)
        return page

    def _drop_unneeded(self, tip: Node, tails: list[Tail]) -> list[PageId]:
        """Drop the tails, then the tip and what is above it, as far as nobody will need them."""
        pages = [self._drop(tail) for tail in tails if self._is_unneeded(tail)]
        node = tip
        while node.parent is not None and self._is_unneeded(node):
            parent = node.parent
            pages.append(self._drop(node))
            node = parent
        return pages

    def _move_all(self, expectations: list[Expectation], node: Node) -> None:
        """Let expectations, all from one node and on the same way, sit at a node from now on."""
        if not expectations:
            return
        first = expectations[0]
        before = first.node
        for expectation in expectations:
            if before is not None:
                del before.expectations[expectation]
            expectation.node = node
            node.expectations[expectation] = None
        # They claim the same pages of both nodes, so one stands for all.
        if before is not None:
            self._reorder(before, first)
        self._reorder(node, first)

    def _goes_on(self, expectation: Expectation, node: Node, tokens: Sequence[int]) -> bool:
        """Whether the tokens behind a node, which the expectation's lead to, are its next ones."""
        start = node.depth * self.page_size
        return expectation.tokens[start : start + len(tokens)] == list(tokens)

    def _claims(self, item: Donor) -> list[Expectation]:
        """Who expects to use a leaf of the tree."""
        if isinstance(item, Node):
            return list(item.expectations)
        parent = item.parent
        return [one for one in parent.expectations if self._goes_on(one, parent, item.tokens)]

    def _key(self, item: Donor) -> Key | None:
        """An item's place in the order of eviction; None while it may not be evicted."""
        if not item.is_evictable:
            return None
        worth = max((one.worth for one in self._claims(item)), default=UNCLAIMED)
        return *worth, item.last_use

    def _is_unneeded(self, item: Donor) -> bool:
        if not item.is_evictable or item.may_return or self._claims(item):
            return False
        # Whoever goes on behind the page above, and begins alike, copies rows of this one.
        assert item.parent is not None, "what is evictable hangs under something"
        start, first = item.parent.depth * self.page_size, item.tokens[:1]
        return all(one.tokens[start : start + 1] != list(first) for one in item.parent.expectations)

    def _tails_along(self, expectation: Expectation, node: Node) -> list[Tail]:
        """The tails of a node whose rows are the expectation's next ones."""
        following = expectation.tokens[node.depth * self.page_size :][: self.page_size]
        return [
            donor
            for donor in node.donors(following)
            if isinstance(donor, Tail) and following[: len(donor.tokens)] == donor.tokens
        ]

    def _reorder(self, node: Node, expectation: Expectation) -> None:
        """An expectation at a node has come, gone or changed: what it claims is placed anew."""
        self._push(node)
        for tail in self._tails_along(expectation, node):
            self._push(tail)
        self._prune(node)

    def _push(self, item: Donor) -> None:
        self._eviction.add(item, self._num_cached)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def _is_empty(root: Node) -> bool:
    return not (root.num_paths or root.children or root.tails or root.expectations)
