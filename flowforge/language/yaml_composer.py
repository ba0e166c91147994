"""From YAML text to a tree of nodes, every problem a diagnostic.

The events come from ruamel.yaml; composing, scalars, aliases and merge keys are ours, so that a
hostile or broken file costs no more than its size: nesting, values and what aliases stand for are
limited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from flowforge.language.diagnostics import Diagnostic
from flowforge.language.json_values import problem_with_text, with_whole_characters
from flowforge.language.source import Span
from flowforge.language.yaml_document import Composed, too_many_values
from flowforge.language.yaml_nodes import (
    MAX_VALUES,
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    kind_of_node,
)
from flowforge.language.yaml_scalars import ScalarError, value_of_plain
from flowforge.language.yaml_syntax import syntax_diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from flowforge.language.source import Source
    from flowforge.language.yaml_nodes import ScalarStyle

MAX_DEPTH = 64
_CORE_TAGS = "tag:yaml.org,2002:"
_STYLES: dict[str | None, ScalarStyle] = {
    None: "plain", "": "plain", "'": "single", '"': "double", "|": "literal", ">": "folded",
}  # fmt: skip


class _Refused(Exception):
    """Nothing after this problem can be trusted."""


def compose(source: Source) -> Composed:
    """The tree of the one document in a text; its top level is a mapping."""
    composed = Composed()
    composer = _Composer(source, composed.diagnostics)
    try:
        root = composer.document()
    except _Refused:
        return composed
    # Reading numbers of a broken escape, ruamel lets Python's own errors through.
    except (YAMLError, ValueError, OverflowError) as error:
        composed.diagnostics.append(syntax_diagnostic(source, error))
        return composed
    if isinstance(root, MappingNode):
        composed.root = root
    elif root is not None:
        composer.report(
            "WF005",
            f"the top level must be a mapping, got {kind_of_node(root)}",
            root.span,
            "a workflow begins with 'flowforge: 1'",
        )
    return composed


@dataclass(frozen=True, slots=True)
class _Sized:
    """A node and how many values it stands for once aliases are written out."""

    node: Node
    size: int


class _Composer:
    """One pass over the events of a text."""

    def __init__(self, source: Source, diagnostics: list[Diagnostic]) -> None:
        self._source = source
        self._diagnostics = diagnostics
        # None while the anchored node is still open.
        self._anchor_to_node: dict[str, _Sized | None] = {}
        self._num_values = 0
        self._events: Iterator[Any] = YAML(typ="safe", pure=True).parse(source.text)

    def document(self) -> Node | None:
        root: Node | None = None
        num_documents = 0
        for event in self._events:
            if isinstance(event, StreamEndEvent):
                break
            if isinstance(event, DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    help = "put the second workflow into a file of its own"
                    self._refuse("WF006", "a second document begins here", _span(event), help)
                root = self._value(next(self._events), 0).node
        if root is None or _is_empty(root):
            help = "a workflow begins with 'flowforge: 1'"
            self._refuse("WF004", "the file is empty", Span(0, 0), help)
        return root

    def report(
        self,
        code: str,
        message: str,
        span: Span,
        help: str | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._diagnostics.append(
            Diagnostic(code, "error", message, self._source, span, help, notes)
        )

    def _refuse(self, code: str, message: str, span: Span, help: str | None = None) -> None:
        self.report(code, message, span, help)
        raise _Refused

    def _value(self, event: Any, depth: int) -> _Sized:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            self._diagnostics.append(too_many_values(self._source, event.start_mark.index))
            raise _Refused
        return self._node(event, depth)

    def _node(self, event: Any, depth: int) -> _Sized:
        if depth > MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels"
            self._refuse("WF010", message, _span(event), "a workflow needs far fewer levels")
        if isinstance(event, AliasEvent):
            return self._alias(event)
        anchor: str | None = event.anchor
        if anchor is not None:
            self._anchor_to_node[anchor] = None
        sized = self._anchored(event, depth)
        if sized.size > MAX_VALUES:
            message = f"alias expansion: the file stands for more than {MAX_VALUES:,} values"
            self._refuse(
                "WF011", message, _span(event), "write the parts out, or use fewer aliases"
            )
        if anchor is not None:
            self._anchor_to_node[anchor] = sized
        return sized

    def _anchored(self, event: Any, depth: int) -> _Sized:
        if isinstance(event, ScalarEvent):
            return _Sized(self._scalar(event), 1)
        if isinstance(event, SequenceStartEvent):
            self._check_tag(event, "seq")
            return self._sequence(event, depth)
        assert isinstance(event, MappingStartEvent)
        self._check_tag(event, "map")
        return self._mapping(event, depth)

    def _alias(self, event: Any) -> _Sized:
        name: str = event.anchor
        if name not in self._anchor_to_node:
            help = f"write '&{name}' before the value that it stands for, or quote the text"
            self._refuse("WF013", f"alias '*{name}' names no anchor above it", _span(event), help)
        sized = self._anchor_to_node[name]
        if sized is None:
            message = f"recursive alias: '*{name}' stands inside what it names"
            self._refuse("WF012", message, _span(event), "write the inner value out")
        assert sized is not None
        return sized

    def _sequence(self, start: Any, depth: int) -> _Sized:
        items: list[Node] = []
        size = 1
        for event in self._events:
            if isinstance(event, SequenceEndEvent):
                end = event.end_mark.index if start.flow_style else _end_of(items, start)
                node = SequenceNode(Span(start.start_mark.index, end), tuple(items))
                return _Sized(node, size)
            sized = self._value(event, depth + 1)
            items.append(sized.node)
            size += sized.size
        raise AssertionError("the parser closes every sequence")

    def _mapping(self, start: Any, depth: int) -> _Sized:
        entries: list[Entry] = []
        merged: list[Entry] = []
        key_to_entry: dict[str, Entry] = {}
        size = 1
        for event in self._events:
            if isinstance(event, MappingEndEvent):
                own = {entry.key for entry in entries}
                entries += _first_of_each(entry for entry in merged if entry.key not in own)
                values = [entry.value for entry in entries]
                end = event.end_mark.index if start.flow_style else _end_of(values, start)
                node = MappingNode(Span(start.start_mark.index, end), tuple(entries))
                return _Sized(node, size)
            key = self._key(event, start, depth)
            sized = self._value(next(self._events), depth + 1)
            size += sized.size
            if key is None:
                continue
            if key.text == "<<" and key.style == "plain":
                merged += self._merged(sized.node, key.span)
                continue
            entry = Entry(key.text, key.span, sized.node)
            self._check_braces(entry, start)
            self._check_duplicate(entry, key_to_entry)
            if entry.key not in key_to_entry:
                key_to_entry[entry.key] = entry
                entries.append(entry)
        raise AssertionError("the parser closes every mapping")

    def _key(self, event: Any, mapping: Any, depth: int) -> ScalarNode | None:
        if isinstance(event, MappingStartEvent) and event.flow_style and mapping.flow_style:
            start = mapping.start_mark.index
            help = "FlowForge writes ${ … }; for literal braces, quote the text"
            message = "an unquoted '{{' begins a YAML mapping, not a text"
            self._refuse("WF016", message, Span(start, start + 2), help)
        node = self._node(event, depth + 1).node
        if isinstance(node, ScalarNode) and (node.value is not None or node.style != "plain"):
            return node
        advice = 'quote it if it is meant as a text: "null"'
        self.report(
            "WF009",
            f"a key must be a text, got {kind_of_node(node)}",
            node.span,
            advice if isinstance(node, ScalarNode) else None,
        )
        return None

    def _check_braces(self, entry: Entry, mapping: Any) -> None:
        """Refuse {Local.Task}: YAML makes it a mapping with one empty value."""
        value = entry.value
        if not mapping.flow_style or value.span.start != value.span.end:
            return
        between = self._source.text[entry.key_span.end : value.span.end]
        if ":" not in between:
            message = f"{entry.key!r} in braces is a key without a value"
            help = "quote the whole text if no mapping is meant, or write 'key: value'"
            self.report("WF016", message, entry.key_span, help)

    def _check_duplicate(self, entry: Entry, known: dict[str, Entry]) -> None:
        first = known.get(entry.key)
        if first is not None:
            line = self._source.location(first.key_span.start).line
            second = self._source.location(entry.key_span.start).line
            message = f"key {entry.key!r} is written twice, on lines {line} and {second}"
            self.report("WF008", message, entry.key_span, "remove one, or rename it")

    def _merged(self, node: Node, span: Span) -> list[Entry]:
        sources = node.items if isinstance(node, SequenceNode) else (node,)
        entries: list[Entry] = []
        for part in sources:
            if not isinstance(part, MappingNode):
                message = f"'<<' merges mappings, got {kind_of_node(part)}"
                self.report("WF017", message, span, "quote the key if '<<' is meant as a text")
                return []
            entries += part.entries
        return entries

    def _scalar(self, event: Any) -> ScalarNode:
        span, style = _span(event), _STYLES[event.style]
        text = self._unicode(str(event.value), span)
        tag = None if event.tag in (None, "!") else str(event.tag)
        if tag == _CORE_TAGS + "str" or (event.tag == "!" and style == "plain"):
            return ScalarNode(span, text, text, "double")
        self._check_tag(event, "null", "bool", "int", "float")
        if style != "plain":
            return ScalarNode(span, text, text, style)
        try:
            return ScalarNode(span, text, value_of_plain(text), style)
        except ScalarError as error:
            self.report("WF015", str(error), span, "quote it if it is meant as a text")
            return ScalarNode(span, text, text, style)

    def _unicode(self, text: str, span: Span) -> str:
        """A text whose escapes may name halves of a character, as JSON's do."""
        paired = with_whole_characters(text)
        problem = problem_with_text(paired)
        if problem is None:
            return paired
        help = "write the character itself, or both halves of it"
        self.report("WF002", f"an escape names half a character: {problem}", span, help)
        return "".join(char for char in paired if problem_with_text(char) is None)

    def _check_tag(self, event: Any, *allowed: str) -> None:
        tag = event.tag
        if tag in (None, "!") or tag in [_CORE_TAGS + name for name in allowed]:
            return
        shown = str(tag).replace(_CORE_TAGS, "!!")
        help = "quote a text that begins with '!'; in an expression write 'not'"
        self.report("WF014", f"the YAML tag {shown!r} is not supported", _span(event), help)


def _span(event: Any) -> Span:
    return Span(event.start_mark.index, event.end_mark.index)


def _end_of(nodes: list[Node], start: Any) -> int:
    # A block collection's own end mark lies behind the empty lines that follow it.
    return max([int(start.end_mark.index), *(node.span.end for node in nodes)])


def _first_of_each(entries: Iterator[Entry]) -> list[Entry]:
    key_to_entry: dict[str, Entry] = {}
    for entry in entries:
        key_to_entry.setdefault(entry.key, entry)
    return list(key_to_entry.values())


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.span.start == node.span.end
