"""A reader of the plain part of YAML that nearly all workflows keep to; far faster than ruamel.

Block mappings and lists, one-line scalars, literal blocks, flow collections. At the first thing
that is anything else, or wrong, it gives up, and the thorough reader starts anew: so it has no
messages, and what it accepts it reads as the thorough reader does, which a property test holds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flowforge.language.source import Span
from flowforge.language.yaml_nodes import (
    MAX_VALUES,
    Entry,
    MappingNode,
    ScalarNode,
    SequenceNode,
)
from flowforge.language.yaml_scalars import ScalarError, value_of_plain

if TYPE_CHECKING:
    from flowforge.language.yaml_nodes import Node

_MAX_DEPTH = 24
# Tabs, other line ends, control characters, document markers and directives are not plain.
_UNUSUAL = re.compile(
    "[^\\n\\x20-\\x7e\\xa0-\\u2027\\u202a-\\ud7ff\\ue000-\\ufefe\\uff00-\\ufffd\\U00010000-\\U0010ffff]"
    r"|^(?:---|\.\.\.|%)",
    re.MULTILINE,
)
_SKIPPED = re.compile(r"(?: *(?:#[^\n]*)?\n)*( *)(?:#[^\n]*\Z)?")
_LINE_END = re.compile(r" *(?: #[^\n]*)?(?=\n|\Z)")
_KEY = re.compile(r"(?:([\w$][\w./-]{0,200})|'([^'\n]{1,200})'|\"([^\"\\\n]{1,200})\"):(?= |\n|\Z)")
_SINGLE = re.compile(r"'((?:[^'\n]|'')*)'")
_DOUBLE = re.compile(r'"((?:[^"\\\n]|\\["\\nt/])*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_INDICATORS = r"\[\]{}#&*!|>'\"%@`,?:-"
_PLAIN = re.compile(
    rf"(?:[^\s{_INDICATORS}]|-(?=[^\s]))(?:[^\s:#]|:(?=[^\s])|(?<=[^\s])#| +(?=[^\s#]))*"
)
_FLOW_INSIDE = r"[\w$./+=()%^~'!?-]"
_FLOW_PLAIN = re.compile(rf"(?:[\w$./+]|-(?=\w))(?:{_FLOW_INSIDE}| +(?={_FLOW_INSIDE}))*")
_FLOW_SPACE = re.compile(r"[ \n]*")
_LITERAL = re.compile(r"\|(-?) *\n")


class TooManyValuesError(Exception):
    """The text has more values than any workflow; the thorough reader would take far longer.

    position: of the first value that is one too many.
    """

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class _NotPlainError(Exception):
    """The text is not plain, or not right."""


def read_plain(text: str) -> MappingNode | None:
    """The tree of a plain text; None for every other, and for one with mistakes.

    Raises TooManyValuesError.
    """
    if _UNUSUAL.search(text) is not None:
        return None
    try:
        return _PlainReader(text).document()
    except (_NotPlainError, ScalarError):
        return None


class _PlainReader:
    """Reads from left to right. position: of the next character; indent: of the line it begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._indent = 0
        self._num_values = 0

    def document(self) -> MappingNode:
        self._next_line()
        if self._indent != 0:
            raise _NotPlainError
        root = self._mapping(0, 0)
        if self._position < len(self._text):
            raise _NotPlainError
        return root

    def _next_line(self) -> None:
        """Go to the first character of the next line that says something; indent -1 at the end."""
        match = _SKIPPED.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        self._indent = len(match[1]) if match.end() < len(self._text) else -1

    def _end_line(self, outer: int) -> None:
        """Leave a line after its value; a deeper line would go on with the value."""
        match = _LINE_END.match(self._text, self._position)
        if match is None:
            raise _NotPlainError
        self._position = match.end() + 1
        self._next_line()
        if self._indent > outer:
            raise _NotPlainError

    def _count(self, depth: int) -> None:
        self._num_values += 1
        if depth > _MAX_DEPTH:
            raise _NotPlainError
        if self._num_values > MAX_VALUES:
            raise TooManyValuesError(self._position)

    def _mapping(self, indent: int, depth: int) -> MappingNode:
        self._count(depth)
        start = end = self._position
        entries: list[Entry] = []
        known: set[str] = set()
        while self._indent == indent:
            match = _KEY.match(self._text, self._position)
            if match is None:
                raise _NotPlainError
            key = match[1] or match[2] or match[3]
            if key in known or (match[1] and value_of_plain(key) is None):
                raise _NotPlainError
            known.add(key)
            self._position = match.end()
            value = self._value(indent, depth + 1, may_be_list=True)
            entries.append(Entry(key, Span(match.start(), match.end() - 1), value))
            end = max(end, value.span.end)
        if self._indent > indent:
            raise _NotPlainError
        return MappingNode(Span(start, end), tuple(entries))

    def _sequence(self, indent: int, depth: int) -> SequenceNode:
        self._count(depth)
        start = end = self._position
        items: list[Node] = []
        while self._indent == indent and self._text.startswith(("- ", "-\n"), self._position):
            self._position += 1
            item = self._item(indent, depth + 1)
            items.append(item)
            end = max(end, item.span.end)
        if self._indent > indent or not items:
            raise _NotPlainError
        return SequenceNode(Span(start, end), tuple(items))

    def _item(self, indent: int, depth: int) -> Node:
        at = self._position
        while self._text.startswith(" ", at):
            at += 1
        if _KEY.match(self._text, at) is None:
            return self._value(indent, depth, may_be_list=False)
        column = at - (self._text.rfind("\n", 0, at) + 1)
        self._position, self._indent = at, column
        return self._mapping(column, depth)

    def _value(self, indent: int, depth: int, *, may_be_list: bool) -> Node:
        """What stands behind a key or a dash; leaves the position at the next line."""
        text = self._text
        line_end = _LINE_END.match(text, self._position)
        if line_end is not None:
            self._position = line_end.end() + 1
            return self._block(indent, depth, may_be_list=may_be_list)
        while text.startswith(" ", self._position):
            self._position += 1
        first = text[self._position]
        if first in "[{'\"":
            node = self._flow(indent, depth)
        else:
            self._count(depth)
            if first == "|":
                return self._literal(indent)
            node = self._plain()
        self._end_line(indent)
        return node

    def _block(self, indent: int, depth: int, *, may_be_list: bool) -> Node:
        """A block on the lines below, or nothing."""
        self._position = min(self._position, len(self._text))
        self._next_line()
        is_item = self._text.startswith(("- ", "-\n"), self._position)
        if self._indent > indent:
            if is_item:
                return self._sequence(self._indent, depth)
            return self._mapping(self._indent, depth)
        if is_item and may_be_list and self._indent == indent:
            return self._sequence(indent, depth)
        self._count(depth)
        return ScalarNode(Span(self._position, self._position), "", None, "plain")

    def _plain(self) -> ScalarNode:
        match = _PLAIN.match(self._text, self._position)
        if match is None:
            raise _NotPlainError
        self._position = match.end()
        return ScalarNode(Span(*match.span()), match[0], value_of_plain(match[0]), "plain")

    def _literal(self, indent: int) -> ScalarNode:
        text, start = self._text, self._position
        header = _LITERAL.match(text, start)
        if header is None:
            raise _NotPlainError
        position = header.end()
        inner = 0
        while text.startswith(" ", position + inner):
            inner += 1
        if inner <= indent or text.startswith("\n", position + inner):
            raise _NotPlainError
        lines: list[str] = []
        end_of_lines = position
        while position < len(text):
            line_end = text.find("\n", position)
            stop = len(text) if line_end < 0 else line_end
            line = text[position:stop]
            if line and not line.strip(" "):
                raise _NotPlainError
            if line and not line.startswith(" " * inner):
                break
            lines.append(line[inner:])
            position = min(stop + 1, len(text))
            if line:
                end_of_lines = stop
        while lines and not lines[-1]:
            lines.pop()
        value = "\n".join(lines)
        if not header[1] and end_of_lines < len(text):
            value += "\n"
        self._position = position
        self._next_line()
        if self._indent > indent:
            raise _NotPlainError
        return ScalarNode(Span(start, position), value, value, "literal")

    def _flow(self, indent: int, depth: int) -> Node:
        """A quoted text or a flow collection, which may go over several lines."""
        self._count(depth)
        text, start = self._text, self._position
        match text[start : start + 1]:
            case "'":
                return self._quoted(_SINGLE)
            case '"':
                return self._quoted(_DOUBLE)
            case "[":
                items: list[Node] = []
                while not self._flow_closes("]", bool(items), indent):
                    items.append(self._flow(indent, depth + 1))
                return SequenceNode(Span(start, self._position), tuple(items))
            case "{":
                entries: list[Entry] = []
                while not self._flow_closes("}", bool(entries), indent):
                    entries.append(self._flow_entry(indent, depth + 1))
                if len({entry.key for entry in entries}) < len(entries):
                    raise _NotPlainError
                return MappingNode(Span(start, self._position), tuple(entries))
            case _:
                return self._flow_plain()

    def _flow_entry(self, indent: int, depth: int) -> Entry:
        match = _KEY.match(self._text, self._position)
        if match is None or not self._text.startswith(" ", match.end()):
            raise _NotPlainError
        key = match[1] or match[2] or match[3]
        if match[1] and value_of_plain(key) is None:
            raise _NotPlainError
        self._position = match.end()
        while self._text.startswith(" ", self._position):
            self._position += 1
        span = Span(match.start(), match.end() - 1)
        return Entry(key, span, self._flow(indent, depth))

    def _flow_closes(self, closing: str, has_items: bool, indent: int) -> bool:
        """Whether the collection ends here; if not, go to its next item."""
        if not has_items:
            self._position += 1
        self._flow_space(indent)
        if self._text.startswith(closing, self._position):
            self._position += 1
            return True
        if has_items:
            if not self._text.startswith(",", self._position):
                raise _NotPlainError
            self._position += 1
            self._flow_space(indent)
        return False

    def _flow_space(self, indent: int) -> None:
        match = _FLOW_SPACE.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        is_deep = "\n" not in match[0] or len(match[0]) - match[0].rfind("\n") - 1 > indent
        if not is_deep or self._position >= len(self._text):
            raise _NotPlainError

    def _flow_plain(self) -> ScalarNode:
        match = _FLOW_PLAIN.match(self._text, self._position)
        if match is None:
            raise _NotPlainError
        self._position = match.end()
        if self._text[match.end() : match.end() + 1] not in (" ", "\n", ",", "]", "}"):
            raise _NotPlainError
        return ScalarNode(Span(*match.span()), match[0], value_of_plain(match[0]), "plain")

    def _quoted(self, pattern: re.Pattern[str]) -> ScalarNode:
        match = pattern.match(self._text, self._position)
        if match is None:
            raise _NotPlainError
        self._position = match.end()
        span = Span(*match.span())
        if pattern is _SINGLE:
            text = match[1].replace("''", "'")
            return ScalarNode(span, text, text, "single")
        text = _ESCAPE.sub(lambda escape: _ESCAPES[escape[1]], match[1])
        return ScalarNode(span, text, text, "double")
