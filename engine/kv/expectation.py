"""What is known of when a sequence's tokens are needed again."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from flowforge.engine.kv.nodes import Node
    from flowforge.engine.kv.prefix_tree import Namespace

# (priority, minus the steps until it is needed, minus when): the greater, the longer it is kept.
Worth: TypeAlias = tuple[float, float, float]
UNCLAIMED: Worth = (-inf, -inf, -inf)


@dataclass(eq=False, slots=True)
class Expectation:
    """A live sequence's claim on the cached pages of its tokens, while no path of it holds them.

    tokens: the sequence's own list. priority: higher ones keep their pages longer. num_steps: in so
    many steps of its holder's program the sequence is needed again; infinity when nobody said.
    ready_at_s: of equal steps, when it is expected to be needed, by a clock that all holders share.
    due_since: it has work since this step of the engine and waits only to be admitted: needed
    before all that is not due, whatever was said; who has waited longest is admitted first.
    is_last: its holder needs these tokens for the last time; pages that served nobody else are
    freed when it ends. node: the deepest page of the tree that holds full pages of the tokens only,
    or the root; None while nothing is claimed. The tree keeps it so.
    """

    namespace: Namespace
    tokens: list[int]
    priority: int = 0
    num_steps: float = inf
    ready_at_s: float = 0.0
    due_since: int | None = None
    is_last: bool = False
    node: Node | None = None

    @property
    def worth(self) -> Worth:
        """What it adds to a page: a page is worth as much as the claim that is worth most."""
        if self.due_since is not None:
            return self.priority, 1, -self.due_since
        return self.priority, -self.num_steps, -self.ready_at_s
