"""A path: the pages that hold one sequence's KV."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge.engine.kv.pool import PageId

if TYPE_CHECKING:
    from flowforge.engine.kv.nodes import Node, Tail


@dataclass(slots=True)
class Extent:
    """A run of adjacent pages: its rows are one slice of the KV tensors."""

    first_page: PageId
    num_pages: int


@dataclass(eq=False, slots=True)
class KvPath:
    """One sequence's KV: full pages in the tree, then private pages. Change it through `KvCache`.

    nodes: the held nodes, root excluded. private: owned pages behind them; rows of the first are
    written up to the tail's length, the rest are reserved. extents: all pages, adjacent merged.
    """

    root: Node
    nodes: list[Node] = field(default_factory=list)
    private: list[PageId] = field(default_factory=list)
    tail: Tail | None = None
    extents: list[Extent] = field(default_factory=list)
    num_tokens: int = 0
    is_released: bool = False

    @property
    def tip(self) -> Node:
        """The last full page in the tree, or the root."""
        return self.nodes[-1] if self.nodes else self.root

    @property
    def num_pages(self) -> int:
        """Pages this path reads or may write."""
        return len(self.nodes) + len(self.private)

    @property
    def last_page(self) -> PageId | None:
        """The page that a next one had best lie behind; None where there is none."""
        if not self.extents:
            return None
        return PageId(self.extents[-1].first_page + self.extents[-1].num_pages - 1)

    def push(self, page: PageId) -> None:
        """Note a page behind the last one in the extents."""
        last = self.extents[-1] if self.extents else None
        if last is not None and last.first_page + last.num_pages == page:
            last.num_pages += 1
        else:
            self.extents.append(Extent(page, 1))

    def pop(self, num_pages: int) -> None:
        """Take so many pages from the end of the extents."""
        while num_pages:
            taken = min(num_pages, self.extents[-1].num_pages)
            self.extents[-1].num_pages -= taken
            num_pages -= taken
            if self.extents[-1].num_pages == 0:
                self.extents.pop()

    def check_invariants(self, page_size: int) -> None:
        """AssertionError unless pages, extents, tail and number of tokens agree."""
        pages = [node.page for node in self.nodes] + list(self.private)
        in_extents = [e.first_page + i for e in self.extents for i in range(e.num_pages)]
        assert pages == in_extents, "extents differ from the pages"
        tail_len = len(self.tail.tokens) if self.tail is not None else 0
        assert self.num_tokens == len(self.nodes) * page_size + tail_len
        if self.tail is not None:
            assert self.tail.is_live, "a path's tail is not live"
            assert self.tail.parent is self.tip, "a tail does not hang at its path's tip"
            assert self.tail.page == self.private[0], "a tail is not in the first private page"
