"""What the prefix tree is made of: full pages, tails, and what a match finds of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.engine.kv.expectation import Expectation
    from flowforge.engine.kv.pool import PageId
    from flowforge.engine.kv.prefix_tree import Namespace


@dataclass(eq=False, slots=True)
class Node:
    """One full page in the tree. Immutable tokens and page; the counts change.

    num_paths: live paths through this node; of a root, all of its namespace. 0 means cached: it may
    be evicted once it is a leaf. may_return: a sequence of these tokens ended and left open whether
    they are needed again. expectations: those whose tokens have no deeper node.
    """

    tokens: tuple[int, ...]
    page: PageId | None  # None: the root of a namespace, which holds no page
    parent: Node | None  # None: a root, or evicted
    depth: int  # pages from the root
    namespace: Namespace
    last_use: int = 0
    num_paths: int = 0
    may_return: bool = False
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    tails: list[Tail] = field(default_factory=list)
    expectations: dict[Expectation, None] = field(default_factory=dict)

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
    may_return: as of a `Node`.
    """

    tokens: list[int]
    page: PageId
    parent: Node
    last_use: int = 0
    is_live: bool = True
    is_evicted: bool = False
    may_return: bool = False

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
