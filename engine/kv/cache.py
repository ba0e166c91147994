"""The KV cache's bookkeeping: paths over the pool and the prefix tree.

A sequence's KV is a path in the tree plus a private tail: tree pages are full, immutable, shared;
the tail's pages have one owner. So copy-on-write needs no write barrier, a fork holds the path once
more, preemption is `release`, and resuming is ordinary admission that finds its pages again.

Page ownership, at any time: free, or private to one path, or in the tree (a node or a cached tail).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.kv.host_tier import HostStatistics
from flowforge.engine.kv.kv_statistics import KvStatistics
from flowforge.engine.kv.moves import RowCopy
from flowforge.engine.kv.nodes import Tail
from flowforge.engine.kv.path import KvPath
from flowforge.engine.kv.pool import PagePool
from flowforge.engine.kv.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.engine.kv.expectation import Expectation
    from flowforge.engine.kv.host_tier import HostTier, Offload, Restore
    from flowforge.engine.kv.nodes import Node
    from flowforge.engine.kv.pool import PageId
    from flowforge.engine.kv.prefix_tree import Namespace


@dataclass(frozen=True, slots=True)
class Reserved:
    """The rows are there to be written."""


@dataclass(frozen=True, slots=True)
class ShortBy:
    """Nothing was taken: that many more pages would have to be released first."""

    num_pages: int


class KvCache:
    """Owns the pool, the tree and every live path.

    on_free: see `PagePool`. host: takes full pages that are evicted; None: they are lost.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        on_free: Callable[[list[PageId]], None] | None = None,
        host: HostTier | None = None,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1 token, got {page_size}")
        self.page_size = page_size
        self._pool = PagePool(num_pages, on_free)
        self._host = host
        self._restored: list[Node] = []
        self._tree = PrefixTree(page_size, None if host is None else host.keep)
        self._paths: set[KvPath] = set()
        self._peak_held = 0
        self._reused_tokens = 0
        self._copied_tokens = 0
        self._evicted_pages = 0

    @property
    def num_available(self) -> int:
        """Pages that can be had without ending a path: free ones and cached ones."""
        return self._pool.num_free + self._tree.num_cached

    @property
    def num_free(self) -> int:
        """Pages that nobody owns."""
        return self._pool.num_free

    @property
    def num_pages(self) -> int:
        """All pages."""
        return self._pool.num_pages

    def is_free(self, page: PageId) -> bool:
        """Whether nobody owns the page."""
        return self._pool.is_free(page)

    def open(self, namespace: Namespace) -> KvPath:
        """An empty path. The caller owns it and must `release` it."""
        path = KvPath(self._tree.enter(namespace))
        self._paths.add(path)
        return path

    def fork(self, path: KvPath) -> KvPath:
        """A second path over the same full pages. Copies and allocates nothing.

        The rows of the partly filled page come with the child's `advance`, when it is about to run.
        O(pages).
        """
        child = self.open(path.root.namespace)
        for node in path.nodes:
            self._walk_to(child, node)
        return child

    def match_len(self, namespace: Namespace, tokens: list[int], limit: int) -> int:
        """How many tokens, at most `limit`, a new path could `advance` over. Changes nothing."""
        return self._tree.match(namespace, tokens, limit).num_tokens

    def holds(self, namespace: Namespace, tokens: Sequence[int]) -> bool:
        """Whether the rows of all these tokens are there."""
        return self.match_len(namespace, [*tokens], len(tokens)) == len(tokens)

    def advance(self, path: KvPath, tokens: list[int], limit: int) -> RowCopy | None:
        """Move a path along what the tree and the host hold of `tokens`, at most to token `limit`.

        Full pages are held; those of the host are copied back, while pages can be had for them. Of
        a partly matching page the rows are copied into a page of the path's own (the returned
        copy), or the whole page is taken over when it is a cached tail that matches to its end.
        Without a page to copy into, the match ends at the page border.
        """
        if path.tail is not None or limit <= path.num_tokens:
            return None
        start = path.num_tokens
        match = self._tree.match_under(path.tip, tokens[start:limit], limit - start)
        self.give_back_reserved(path)
        for node in match.nodes:
            self._walk_to(path, node)
        if self._restore(path, tokens, limit):
            known = path.num_tokens
            match = self._tree.match_under(path.tip, tokens[known:limit], limit - known)
        self._reused_tokens += path.num_tokens - start
        if match.donor is None:
            return None
        rows = list(match.donor.tokens[: match.num_donor_tokens])
        donor = match.donor
        if isinstance(donor, Tail) and donor.is_evictable and len(rows) == len(donor.tokens):
            self._tree.adopt(donor)
            self._push_private(path, donor.page)
            path.tail = donor
            path.num_tokens += len(rows)
            self._reused_tokens += len(rows)
            self._note_peak()
            return None
        return self._copy_rows(path, donor, rows)

    def take_moves(self) -> list[Offload | Restore]:
        """What is to be moved between pool and host, before what was asked for after this."""
        return [] if self._host is None else self._host.take_moves()

    def take_restored(self) -> tuple[Node, ...]:
        """What the moves that were taken since the last call bring back: trusted from here on."""
        restored = tuple(self._restored)
        self._restored.clear()
        return restored

    def distrust_moves(self, restored: Sequence[Node]) -> None:
        """Moves that were taken may not have been carried out: forget what they were to bring.

        restored: of `take_restored`, in order; no path may run through any of it.
        """
        if self._host is not None:
            self._host.clear()
        # The last one first: it hangs under the others.
        self._pool.release([*self._tree.drop_all(restored[::-1])])

    def can_hold(self, path: KvPath, tokens: list[int], limit: int, num_spared: int = 0) -> bool:
        """Whether `advance` to `limit` and then `reserve` for all tokens would succeed.

        And would leave `num_spared` pages that can be had. Changes nothing.
        """
        if path.tail is not None or limit <= path.num_tokens:
            return self.num_missing(path, len(tokens)) + num_spared <= self.num_available
        start = path.num_tokens
        nodes = self._tree.match_under(path.tip, tokens[start:limit], limit - start).nodes
        num_missing = self.num_pages_of(len(tokens)) - len(path.nodes) - len(nodes)
        num_cached = sum(node.num_paths == 0 for node in nodes)
        num_free = self.num_available + len(path.private) - num_cached
        return num_missing + num_spared <= num_free

    def num_missing(self, path: KvPath, num_tokens: int) -> int:
        """Pages that a path lacks to have a row for every token up to `num_tokens`."""
        return max(0, self.num_pages_of(num_tokens) - path.num_pages)

    def num_pages_of(self, num_tokens: int) -> int:
        """Pages that have a row for each of so many tokens."""
        return -(-num_tokens // self.page_size)

    def reserve(self, path: KvPath, num_tokens: int) -> Reserved | ShortBy:
        """Have a private row for every token up to `num_tokens` in all; evicts what is cached."""
        num_missing = self.num_missing(path, num_tokens)
        if num_missing == 0:
            return Reserved()
        if num_missing > self.num_available:
            return ShortBy(num_missing - self.num_available)
        self._make_free(num_missing)
        for page in self._pool.allocate(num_missing, after=path.last_page):
            self._push_private(path, page)
        self._note_peak()
        return Reserved()

    def give_back_reserved(self, path: KvPath) -> None:
        """Free a path's pages behind the one that is written in part."""
        keep = 0 if path.tail is None else 1
        extra = path.private[keep:]
        if extra:
            self._pool.release(extra)
            del path.private[keep:]
            path.pop(len(extra))

    def commit(self, path: KvPath, tokens: Sequence[int]) -> None:
        """Say that the rows behind the path's end now hold the KV of these tokens.

        Pages that are full go into the tree, for others to hit at once; where the tree has the same
        page already, the path goes on with that one and its own is freed.
        """
        done = 0
        while done < len(tokens):
            written = 0 if path.tail is None else len(path.tail.tokens)
            rows = tokens[done : done + self.page_size - written]
            if path.tail is None:
                path.tail = self._tree.attach(path.tip, [*rows], path.private[0])
            else:
                path.tail.tokens.extend(rows)
            path.num_tokens += len(rows)
            done += len(rows)
            if written + len(rows) == self.page_size:
                self._promote(path, path.tail)

    def slot(self, path: KvPath, position: int) -> int:
        """The row of the KV tensors that token `position` of this path has or will have."""
        page_idx, offset = divmod(position, self.page_size)
        num_shared = len(path.nodes)
        if page_idx < num_shared:
            page = path.nodes[page_idx].page
            assert page is not None, "only a root has no page"
        else:
            page = path.private[page_idx - num_shared]
        return page * self.page_size + offset

    def release(self, path: KvPath) -> None:
        """The one exit: for finish, abort, preemption and error. Idempotent.

        What is written stays in the tree as cached, evictable pages; what was reserved is free.
        """
        if path.is_released:
            return
        self.give_back_reserved(path)
        if path.tail is not None:
            self._pool.release(self._tree.cache_tail(path.tail))
        self._end(path)

    def discard(self, path: KvPath) -> None:
        """`release` a path whose partly filled page may not be what it says, and free that page.

        For a `RowCopy` that was not carried out, and after a forward pass that failed: full pages
        were committed when they were written, and stay. Idempotent.
        """
        if path.is_released:
            return
        if path.tail is not None:
            self._tree.detach(path.tail)
            path.tail = None
        self.give_back_reserved(path)
        self._end(path)

    def expect(self, expectation: Expectation) -> None:
        """Let a sequence that holds no path claim what is cached of its tokens.

        In the order of eviction a page counts as the most that is claimed for it. What is claimed
        is still evicted when pages are short: it holds nothing.
        """
        self._tree.place(expectation)

    def restate(self, expectation: Expectation) -> None:
        """An expectation's priority, steps or work have changed; its tokens must not."""
        self._tree.restate(expectation)

    def withdraw(self, expectation: Expectation) -> None:
        """The sequence holds a path again, or its tokens change. Idempotent."""
        self._tree.withdraw(expectation)

    def conclude(self, expectation: Expectation) -> None:
        """The sequence of a placed expectation is over.

        After its holder's last use, pages that served no other sequence are free at once.
        """
        self._pool.release(self._tree.conclude(expectation))

    def drop_cached(self) -> int:
        """Evict everything that no path holds; returns the number of pages freed."""
        pages = self._tree.evict(self._tree.num_cached)
        self._pool.release(pages)
        return len(pages)

    def statistics(self) -> KvStatistics:
        """A snapshot; O(1)."""
        return KvStatistics(
            pages_total=self._pool.num_pages,
            pages_free=self._pool.num_free,
            pages_cached=self._tree.num_cached,
            pages_held=self._num_held(),
            pages_peak_held=self._peak_held,
            num_namespaces=self._tree.num_namespaces,
            reused_tokens=self._reused_tokens,
            copied_tokens=self._copied_tokens,
            evicted_pages=self._evicted_pages,
            host=HostStatistics() if self._host is None else self._host.statistics(),
        )

    def page_uses(self) -> str:
        """A letter a page: f(ree), p(rivate), or of the tree, with no path c, with one t, else s.

        O(pages that are not free).
        """
        uses = bytearray(b"f") * self._pool.num_pages
        for node in self._tree.nodes():
            assert node.page is not None, "only a root has no page"
            uses[node.page] = b"cts"[min(node.num_paths, 2)]
        for tail in self._tree.tails():
            uses[tail.page] = ord("c")
        for path in self._paths:
            for page in path.private:
                uses[page] = ord("p")
        return uses.decode("ascii")

    def check_invariants(self) -> None:
        """AssertionError unless every page has exactly one place and every count is what it counts.

        O(all pages and tokens): for tests, debug mode and doubt.
        """
        self._pool.check_invariants()
        self._tree.check_invariants()
        if self._host is not None:
            self._host.check_invariants()
        owners = [node.page for node in self._tree.nodes()]
        owners += [tail.page for tail in self._tree.tails() if not tail.is_live]
        through: dict[int, int] = {}
        for path in self._paths:
            path.check_invariants(self.page_size)
            owners += path.private
            for node in path.nodes:
                through[id(node)] = through.get(id(node), 0) + 1
        assert len(owners) == len(set(owners)), "a page has two places"
        assert all(not self._pool.is_free(page) for page in owners if page is not None)
        assert len(owners) + self._pool.num_free == self._pool.num_pages, "a page is nowhere"
        for node in self._tree.nodes():
            assert node.num_paths == through.get(id(node), 0), "path count differs from the paths"
        statistics = self.statistics()
        total = statistics.pages_free + statistics.pages_cached + statistics.pages_held
        assert total == statistics.pages_total, "free + cached + held is not total"

    def __repr__(self) -> str:
        held, cached = self._num_held(), self._tree.num_cached
        return f"KvCache(held={held} cached={cached} free={self._pool.num_free}/{self.num_pages})"

    def _end(self, path: KvPath) -> None:
        path.is_released = True
        self._paths.remove(path)
        # Leaves first: a parent is pushed for eviction only when its children are.
        for node in reversed(path.nodes):
            self._tree.let_go(node)
        self._tree.leave(path.root)
        path.nodes, path.private, path.extents, path.tail = [], [], [], None
        path.num_tokens = 0

    def _walk_to(self, path: KvPath, node: Node) -> None:
        assert node.page is not None and not path.private
        self._tree.hold(node)
        path.nodes.append(node)
        path.num_tokens += self.page_size
        path.push(node.page)
        self._note_peak()

    def _promote(self, path: KvPath, tail: Tail) -> None:
        self._tree.detach(tail)
        node, is_new = self._tree.insert(path.tip, tuple(tail.tokens), tail.page)
        node.may_return |= tail.may_return
        self._tree.hold(node)
        path.nodes.append(node)
        path.private.pop(0)
        path.tail = None
        if not is_new:
            self._pool.release([tail.page])
            path.extents = []
            for shared in path.nodes:
                assert shared.page is not None
                path.push(shared.page)
            for page in path.private:
                path.push(page)

    def _copy_rows(self, path: KvPath, donor: Node | Tail, rows: list[int]) -> RowCopy | None:
        if self._pool.num_free == 0:
            evicted = self._tree.evict(1, keep=donor)
            self._evicted_pages += len(evicted)
            self._pool.release(evicted)
        if self._pool.num_free == 0:
            return None
        assert donor.page is not None, "only a root has no page"
        page = self._pool.allocate(1)[0]
        self._push_private(path, page)
        path.tail = self._tree.attach(path.tip, rows, page)
        path.num_tokens += len(rows)
        self._tree.touch(donor)
        self._reused_tokens += len(rows)
        self._copied_tokens += len(rows)
        self._note_peak()
        return RowCopy(donor.page, page, len(rows))

    def _restore(self, path: KvPath, tokens: list[int], limit: int) -> bool:
        """Go on along what the host holds behind a path's tip; whether it held anything."""
        if self._host is None:
            return False
        known = path.num_tokens
        pages = self._host.following(path.tip, tokens[known:limit], self.page_size)
        for one in pages:
            self._make_free(1)
            # Making room may have had the host forget this one.
            if self._pool.num_free == 0 or one.slot is None:
                break
            (page,) = self._pool.allocate(1, after=path.last_page)
            self._host.restore(one, page)
            node, is_new = self._tree.insert(path.tip, one.tokens, page)
            assert is_new, "what the tree holds is not looked for in the host"
            self._walk_to(path, node)
            self._restored.append(node)
        return path.num_tokens > known

    def _push_private(self, path: KvPath, page: PageId) -> None:
        path.private.append(page)
        path.push(page)

    def _make_free(self, count: int) -> None:
        missing = count - self._pool.num_free
        if missing > 0:
            evicted = self._tree.evict(missing)
            self._evicted_pages += len(evicted)
            self._pool.release(evicted)

    def _num_held(self) -> int:
        return self._pool.num_pages - self._pool.num_free - self._tree.num_cached

    def _note_peak(self) -> None:
        self._peak_held = max(self._peak_held, self._num_held())
