"""The syntax tree of an expression.

start, end: the node's characters within the text that was parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

ComparisonOperator = Literal["==", "!=", "<", "<=", ">", ">=", "in", "not in"]
LogicalOperator = Literal["and", "or"]
ArithmeticOperator = Literal["+", "-", "*", "/", "%"]


@dataclass(frozen=True, slots=True)
class Name:
    """A name in scope."""

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal of the expression language."""

    start: int
    end: int
    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list written out: [a, b]."""

    start: int
    end: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ObjectOf:
    """An object written out, which only YAML can do: each field's name with its value."""

    start: int
    end: int
    fields: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class FieldOf:
    """subject.field; field_start is where the field's name begins."""

    start: int
    end: int
    subject: Node
    field: str
    field_start: int


@dataclass(frozen=True, slots=True)
class ItemOf:
    """subject[index]."""

    start: int
    end: int
    subject: Node
    index: Node


@dataclass(frozen=True, slots=True)
class Piped:
    """subject | filter(arguments); filter_start is where the filter's name begins."""

    start: int
    end: int
    subject: Node
    filter: str
    filter_start: int
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Coalesce:
    """left ?? right: right where left is null."""

    start: int
    end: int
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """left operator right, on numbers."""

    start: int
    end: int
    operator: ArithmeticOperator
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Negative:
    """-operand."""

    start: int
    end: int
    operand: Node


@dataclass(frozen=True, slots=True)
class Comparison:
    """left operator right."""

    start: int
    end: int
    operator: ComparisonOperator
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Not:
    """Not operand."""

    start: int
    end: int
    operand: Node


@dataclass(frozen=True, slots=True)
class Logical:
    """left and right, left or right; right is looked at only when left does not decide."""

    start: int
    end: int
    operator: LogicalOperator
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Conditional:
    """Chosen if condition else otherwise."""

    start: int
    end: int
    chosen: Node
    condition: Node
    otherwise: Node


Node: TypeAlias = (
    Name
    | Constant
    | ListOf
    | ObjectOf
    | FieldOf
    | ItemOf
    | Piped
    | Coalesce
    | Arithmetic
    | Negative
    | Comparison
    | Not
    | Logical
    | Conditional
)


def children_of(node: Node) -> tuple[Node, ...]:
    """The nodes directly below, in the order they are written."""
    match node:
        case Name() | Constant():
            return ()
        case ListOf():
            return node.items
        case ObjectOf():
            return tuple(value for _, value in node.fields)
        case FieldOf():
            return (node.subject,)
        case ItemOf():
            return (node.subject, node.index)
        case Piped():
            return (node.subject, *node.arguments)
        case Coalesce() | Comparison() | Logical() | Arithmetic():
            return (node.left, node.right)
        case Not() | Negative():
            return (node.operand,)
        case Conditional():
            return (node.chosen, node.condition, node.otherwise)


def names_of(node: Node) -> Iterator[Name]:
    """Every use of a name in scope."""
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, Name):
            yield current
        pending.extend(children_of(current))


def depth_of(node: Node) -> int:
    """The longest chain of nodes, found without recursion."""
    deepest, pending = 0, [(node, 1)]
    while pending:
        current, depth = pending.pop()
        deepest = max(deepest, depth)
        pending.extend((child, depth + 1) for child in children_of(current))
    return deepest
