"""Whether a carried value of a loop gets longer in every round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.expression_nodes import (
    Coalesce,
    Conditional,
    ListOf,
    Name,
    ObjectOf,
    Piped,
)
from flowforge.language.program import Set

if TYPE_CHECKING:
    from flowforge.language.expression_nodes import Node
    from flowforge.language.program import Loop

# Filters whose result holds all of their subject.
_KEEPING = frozenset(
    ("join", "bullets", "numbered", "append", "concat", "reverse", "sort", "compact", "lines",
     "split", "trim", "upper", "lower", "json", "text", "default")
)  # fmt: skip
_ADDING = frozenset(("append", "concat"))


def grows(name: str, loop: Loop) -> bool:
    """Whether the next value of a carried name holds the last one and something more.

    `set` steps of the loop's body are looked through; what a model writes is bounded by itself.
    """
    return _Growth(name, loop).grows(loop.next[name].node)


class _Growth:
    """Looks for one carried name in the expressions that make its next value."""

    def __init__(self, name: str, loop: Loop) -> None:
        self._name = name
        self._computed = {
            step.name: step.verb.value.node
            for step in loop.body.steps.values()
            if isinstance(step.verb, Set)
        }

    def grows(self, node: Node) -> bool:
        """Whether the value holds the name's whole value, and more."""
        match node:
            case Name(name=name) if name in self._computed:
                return self.grows(self._computed[name])
            case Piped(filter="join", subject=ListOf(items=items)) if len(items) > 1:
                return any(map(self._holds, items))
            case Piped() if node.filter in _ADDING:
                return self._holds(node.subject) or any(map(self._holds, node.arguments))
            case Piped() if node.filter in _KEEPING:
                return self.grows(node.subject)
            case ListOf(items=items):
                return any(map(self._holds, items))
            case ObjectOf(fields=fields):
                return any(self._holds(value) for _, value in fields)
            case Coalesce(left=left, right=right):
                return self.grows(left) or self.grows(right)
            case Conditional(chosen=chosen, otherwise=otherwise):
                return self.grows(chosen) or self.grows(otherwise)
            case _:
                return False

    def _holds(self, node: Node) -> bool:
        """Whether the value holds all of the name's value."""
        match node:
            case Name(name=name):
                if name in self._computed:
                    return self._holds(self._computed[name])
                return name == self._name
            case Piped() if node.filter in _KEEPING:
                return self._holds(node.subject) or self.grows(node)
            case Coalesce(left=left, right=right):
                return self._holds(left) or self._holds(right)
            case Conditional(chosen=chosen, otherwise=otherwise):
                return self._holds(chosen) or self._holds(otherwise)
            case _:
                return self.grows(node)
