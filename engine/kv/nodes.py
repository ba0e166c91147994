"""What the prefix tree is made of: full pages, tails, and what a match finds of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flowforge.engine.kv.expectation import Expectation
    from flowforge.engine.kv.pool import PageId
    from flowforge.engine.kv.prefix_tree import Namespace


@dataclass(eq=False, slots=True)
class Node:
    """One full page in the tree. Immutable tokens and page; the counts change.

    num_paths: live paths through this node; of a root, all of its namespace. 0 means cached: it may
    be evicted once it is a leaf. may_return: a sequence of these tokens ended and left open whether
    they are needed again. by_first: what hangs under the node, by its first token.
    expectations: those whose tokens have no deeper node.
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
    tails: dict[Tail, None] = field(default_factory=dict)
    by_first: dict[int, dict[Donor, None]] = field(default_factory=dict)
    expectations: dict[Expectation, None] = field(default_factory=dict)

    @property
    def is_evictable(self) -> bool:
        """Whether this is a page that no path runs through and nothing hangs under."""
        return (
            self.parent is not None and self.num_paths == 0 and not self.children and not self.tails
        )

    def hang(self, donor: Donor) -> None:
        """Put a page under this node."""
        if isinstance(donor, Node):
            self.children[donor.tokens] = donor
        else:
            self.tails[donor] = None
        self.by_first.setdefault(donor.tokens[0], {})[donor] = None

    def take_away(self, donor: Donor) -> None:
        """Remove a page that hangs under this node."""
        if isinstance(donor, Node):
            del self.children[donor.tokens]
        else:
            del self.tails[donor]
        of_first = self.by_first[donor.tokens[0]]
        del of_first[donor]
        if not of_first:
            del self.by_first[donor.tokens[0]]

    def donors(self, tokens: Sequence[int]) -> Iterator[Donor]:
        """What hangs under this node and has at least the first of these tokens' rows."""
        if tokens:
            yield from self.by_first.get(tokens[0], ())


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
