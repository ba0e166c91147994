"""The tree of a YAML document: frozen nodes, each with its place in the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue
    from flowforge.language.source import Span

ScalarStyle = Literal["plain", "single", "double", "literal", "folded"]


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A value without parts. text: its characters as YAML reads them; value: what they mean."""

    span: Span
    text: str
    value: JsonValue
    style: ScalarStyle


# As many as 2,000 steps have; a longer text takes seconds to be read.
MAX_VALUES = 50_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping with its value; keys are always texts."""

    key: str
    key_span: Span
    value: Node


@dataclass(frozen=True, slots=True)
class MappingNode:
    """A mapping; every key is there once, merged keys behind the mapping's own."""

    span: Span
    entries: tuple[Entry, ...]

    def entry(self, key: str) -> Entry | None:
        """The entry of a key."""
        for entry in self.entries:
            if entry.key == key:
                return entry
        return None


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """A list."""

    span: Span
    items: tuple[Node, ...]


Node: TypeAlias = ScalarNode | MappingNode | SequenceNode


def kind_of_node(node: Node) -> str:
    """The word for a node's kind in messages."""
    match node:
        case MappingNode():
            return "a mapping"
        case SequenceNode():
            return "a list"
        case ScalarNode(value=None):
            return "nothing"
        case ScalarNode(value=bool()):
            return f"the boolean {node.text}"
        case ScalarNode(value=int() | float()):
            return f"the number {node.text}"
        case ScalarNode():
            return "a text"


def value_of_node(node: Node) -> JsonValue:
    """The JSON value that a tree means."""
    match node:
        case ScalarNode():
            return node.value
        case SequenceNode():
            return [value_of_node(item) for item in node.items]
        case MappingNode():
            return {entry.key: value_of_node(entry.value) for entry in node.entries}


def node_at(node: Node, pointer: str) -> Span:
    """The place of a JSON pointer's target; of its nearest parent where the target is not there.

    For a mapping's entry this is the place of its value.
    """
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        child = _child(node, name)
        if child is None:
            break
        node = child
    return node.span


def _child(node: Node, name: str) -> Node | None:
    if isinstance(node, MappingNode):
        entry = node.entry(name)
        return None if entry is None else entry.value
    if isinstance(node, SequenceNode) and name.isascii() and name.isdigit() and len(name) < 8:
        return node.items[int(name)] if int(name) < len(node.items) else None
    return None
