"""What is known of when a sequence's tokens are needed again."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from flowforge.engine.kv.nodes import Node
    from flowforge.engine.kv.prefix_tree import Namespace

# (priority, minus the steps until it is needed): the greater, the longer a page is kept.
Worth: TypeAlias = tuple[float, float]
UNCLAIMED: Worth = (-inf, -inf)


@dataclass(eq=False, slots=True)
class Expectation:
    """A live sequence's claim on the cached pages of its tokens, while no path of it holds them.

    tokens: the sequence's own list. priority: higher ones keep their pages longer. num_steps: in so
    many steps of its holder's program the sequence is needed again; infinity when nobody said.
    is_due: it has work and waits only to be admitted: needed in 0 steps, whatever was said.
    is_last: its holder needs these tokens for the last time; pages that served nobody else are
    freed when it ends. node: the deepest page of the tree that holds full pages of the tokens only,
    or the root; None while nothing is claimed. The tree keeps it so.
    """

    namespace: Namespace
    tokens: list[int]
    priority: int = 0
    num_steps: float = inf
    is_due: bool = False
    is_last: bool = False
    node: Node | None = None

    @property
    def worth(self) -> Worth:
        """What it adds to a page: a page is worth as much as the claim that is worth most."""
        return self.priority, 0 if self.is_due else -self.num_steps
