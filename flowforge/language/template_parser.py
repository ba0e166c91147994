"""Finds the `${ … }` holes of a text, and their places in the file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.expression_nodes import Constant, ListOf, Name, Piped, names_of
from flowforge.language.expression_parser import ExpressionSyntaxError, parse_expression
from flowforge.language.expressions import Expression
from flowforge.language.inference import Inference
from flowforge.language.secrets import SECRETS, sealed
from flowforge.language.source import Span
from flowforge.language.templates import Template
from flowforge.language.types import ANY, STRING, display_type, may_be_null, type_of_literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.expression_nodes import Node
    from flowforge.language.scope import Names, Report
    from flowforge.language.source import Source
    from flowforge.language.yaml_nodes import ScalarNode

# The end of a hole: a brace outside quotes.
_HOLE_END = re.compile(r"""(?:[^"'}]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*\}""", re.DOTALL)

MAX_TEMPLATE_PARTS = 1_000


@dataclass(frozen=True, slots=True)
class Fragment:
    """Characters start…end of a scalar's text, placed in the file on demand."""

    source: Source
    scalar: ScalarNode
    start: int
    end: int

    @property
    def text(self) -> str:
        """The fragment's characters."""
        return self.scalar.text[self.start : self.end]

    def place(self, start: int, end: int) -> Span:
        """The file's characters for characters of the fragment; never an empty span."""
        origin = self._origin()
        if origin is not None:
            return Span(origin + start, origin + max(end, start + 1))
        first = self._offset(self.start + start)
        last = self._offset(self.start + max(end - 1, start))
        return Span(first, max(last, first) + 1)

    def _origin(self) -> int | None:
        """Where the fragment of a hole begins in the file, if it stands there word for word."""
        text, raw, position = self.scalar.text, self.source.text, self.scalar.span.start
        if not text.startswith("${", self.start - 2):
            return None
        for _ in range(text.count("${", 0, self.start)):
            position = raw.find("${", position, self.scalar.span.end) + 2
            if position < 2:
                return None
        return position if raw.startswith(self.text, position) else None

    def _offset(self, idx: int) -> int:
        """Walk the scalar's text and its source side by side from the nearest '${'."""
        text, raw, base = self.scalar.text, self.source.text, self.scalar.span.start
        anchor = text.rfind("${", 0, self.start + 2)
        position, at = base, 0
        if anchor >= 0:
            at = anchor
            for _ in range(text.count("${", 0, anchor) + 1):
                position = raw.find("${", position, self.scalar.span.end) + 2
                if position < 2:
                    return base
            position -= 2
        elif self.scalar.style in ("single", "double"):
            position = base + 1
        return self._walk(position, at, idx)

    def _walk(self, position: int, at: int, idx: int) -> int:
        text, raw, end = self.scalar.text, self.source.text, self.scalar.span.end
        while at < idx and position < end:
            if text[at].isspace():
                position, at = _skip_space(raw, position), _skip_space(text, at)
                if at > idx:
                    return position - 1
            else:
                is_escape = raw[position] == "\\" and self.scalar.style == "double"
                is_doubled = raw[position : position + 2] == "''" and self.scalar.style == "single"
                position, at = position + (2 if is_escape or is_doubled else 1), at + 1
        return min(position, max(end - 1, 0))


@dataclass(frozen=True, slots=True)
class Hole:
    """A parsed expression that is not yet typed. read: names with their places; span: its own."""

    fragment: Fragment
    node: Node
    read: tuple[tuple[str, Span], ...]
    span: Span

    def names(self) -> Iterator[tuple[str, Span]]:
        """The names it reads, with their places."""
        yield from self.read

    def typed(self, names: Names, report: Report) -> Expression:
        """The expression, its problems reported."""
        type_ = Inference(names, report, self.fragment.place).infer(self.node)
        read = frozenset(name for name, _ in self.read)
        location = self.fragment.source.location(self.span.start)
        node, text = self.node, self.fragment.text.strip()
        if SECRETS in read and names.find(SECRETS) is not None:
            secret = sealed(node)
            if secret is None:
                message = "a secret is put in as it is, and nothing is computed from it"
                report.error("WF141", message, self.span, "write ${ secrets.NAME } alone")
            else:
                node, read = secret, frozenset[str]()
        return Expression(text, node, type_, read, location)


@dataclass(frozen=True, slots=True)
class TemplateDraft:
    """Text and untyped holes. is_whole: False where a hole that cannot be parsed is left out."""

    source: Source
    scalar: ScalarNode
    parts: tuple[str | Hole, ...]
    is_whole: bool = True

    def names(self) -> Iterator[tuple[str, Span]]:
        """The names the holes read, with their places."""
        for part in self.parts:
            if isinstance(part, Hole):
                yield from part.names()

    def typed(self, names: Names, report: Report) -> Template:
        """The template; a hole that may be null is reported."""
        parts = tuple(
            part if isinstance(part, str) else _text_hole(part, names, report)
            for part in self.parts
        )
        return Template(parts, self.source.location(self.scalar.span.start))

    def whole(self, names: Names, report: Report) -> Expression:
        """The text as one value: a lone hole keeps its type, anything else is a text."""
        if self.is_whole and len(self.parts) == 1 and isinstance(self.parts[0], Hole):
            return self.parts[0].typed(names, report)
        location = self.source.location(self.scalar.span.start)
        template = self.typed(names, report)
        if not self.is_whole:
            return Expression("", Constant(0, 0, None), ANY, template.names, location)
        if all(isinstance(part, str) for part in template.parts):
            text = "".join(part for part in template.parts if isinstance(part, str))
            return Expression(
                text, Constant(0, 0, text), type_of_literal(text), frozenset(), location
            )
        items = tuple(
            Constant(0, 0, part) if isinstance(part, str) else part.node for part in template.parts
        )
        node = Piped(0, 0, ListOf(0, 0, items), "join", 0, ())
        return Expression(self.scalar.text, node, STRING, template.names, location)


def parse_template(source: Source, scalar: ScalarNode, report: Report) -> TemplateDraft:
    """Text and holes of a scalar. A hole that cannot be parsed is reported and left out."""
    text, parts, literal = scalar.text, list[str | Hole](), list[str]()
    position, is_whole = 0, True
    while (dollar := text.find("$", position)) >= 0:
        literal.append(text[position:dollar])
        if text.startswith("$${", dollar):
            literal.append("${")
            position = dollar + 3
        elif text.startswith("${", dollar):
            end = _hole_end(text, dollar + 2)
            if end is None:
                fragment = Fragment(source, scalar, dollar, dollar + 2)
                help = "close it with '}', or write '$${' for the characters themselves"
                report.error("WF207", "'${' is not closed", fragment.place(0, 2), help)
                position, is_whole = len(text), False
                break
            if len(parts) >= MAX_TEMPLATE_PARTS:
                message = f"the text has more than {MAX_TEMPLATE_PARTS:,} parts"
                place = Fragment(source, scalar, dollar, end).place(0, 2)
                report.error("WF209", message, place, "pass a list, and join it in one expression")
                return TemplateDraft(source, scalar, (), is_whole=False)
            if literal_text := "".join(literal):
                parts.append(literal_text)
            literal = []
            hole = parse_hole(Fragment(source, scalar, dollar + 2, end), report)
            if hole is None:
                is_whole = False
            else:
                parts.append(hole)
            position = end + 1
        else:
            literal.append("$")
            position = dollar + 1
    literal.append(text[position:])
    if literal_text := "".join(literal):
        parts.append(literal_text)
    return TemplateDraft(source, scalar, tuple(parts), is_whole)


def parse_hole(fragment: Fragment, report: Report) -> Hole | None:
    """One expression; None when it cannot be parsed, which is reported."""
    try:
        node = parse_expression(fragment.text)
    except ExpressionSyntaxError as error:
        place = fragment.place(error.start, error.end)
        report.error(error.code, error.message, place, error.help)
        return None
    # Places are found by walking the text, so each is looked up once.
    span = fragment.place(node.start, node.end)
    read = tuple(
        (name.name, span if name is node else fragment.place(name.start, name.end))
        for name in names_of(node)
    )
    return Hole(fragment, node, read, span)


def _text_hole(hole: Hole, names: Names, report: Report) -> Expression:
    expression = hole.typed(names, report)
    if expression.type != ANY and may_be_null(expression.type):
        message = f"'{expression.text}' may be null ({display_type(expression.type)})"
        is_simple = isinstance(hole.node, Name) or len(expression.text) < 30
        shown = expression.text if is_simple else "…"
        report.error(
            "WF208", message, hole.span, f'say what to write then: ${{ {shown} ?? "nothing" }}'
        )
    return expression


def _hole_end(text: str, start: int) -> int | None:
    match = _HOLE_END.match(text, start)
    if match is not None:
        return match.end() - 1
    # A quote that is never closed hides the brace; the expression's parser says so.
    end = text.find("}", start)
    return None if end < 0 else end


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
