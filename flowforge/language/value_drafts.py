"""Values written in YAML with expressions inside, before names are resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from flowforge.language.expression_nodes import Constant, ListOf, ObjectOf
from flowforge.language.expression_parser import ExpressionSyntaxError, parse_expression
from flowforge.language.expressions import Expression
from flowforge.language.fields import head_of, mapping_of, place_of, template_of_scalar
from flowforge.language.template_parser import Hole, TemplateDraft
from flowforge.language.types import (
    BOOLEAN,
    Array,
    Field,
    Object,
    display_type,
    join_types,
    may_be,
    may_be_null,
    type_of_literal,
)
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, SequenceNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flowforge.language.drafts import Context
    from flowforge.language.expression_nodes import Node as ExpressionNode
    from flowforge.language.scope import Names, Report
    from flowforge.language.source import Source, Span
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import Entry, Node

_Part: TypeAlias = "TemplateDraft | Constant | tuple[_Part, ...] | dict[str, _Part]"


@dataclass(frozen=True, slots=True)
class ValueDraft:
    """A value. span: its place in the file, on one line."""

    source: Source
    part: _Part
    span: Span

    def names(self) -> Iterator[tuple[str, Span]]:
        """The names that its expressions read, with their places."""
        yield from _names_of(self.part)

    def typed(self, names: Names, report: Report) -> Expression:
        """The value as one expression, its problems reported."""
        if isinstance(self.part, TemplateDraft):
            return self.part.whole(names, report)
        node, type_ = self._resolved(self.part, names, report)
        text = self.source.text[self.span.start : self.span.end].strip()
        read = frozenset(name for name, _ in self.names())
        return Expression(text, node, type_, read, self.source.location(self.span.start))

    def condition(self, names: Names, report: Report) -> Expression:
        """The value, which has to be true or false."""
        num_known = len(report.diagnostics)
        expression = self.typed(names, report)
        is_boolean = may_be(expression.type, BOOLEAN) and not may_be_null(expression.type)
        if not is_boolean and len(report.diagnostics) == num_known:
            message = f"expected a boolean, got {display_type(expression.type)}"
            help = "compare the value with something, for example != null"
            report.error("WF206", message, self.span, help)
        return expression

    def _resolved(self, part: _Part, names: Names, report: Report) -> tuple[ExpressionNode, Type]:
        match part:
            case TemplateDraft():
                expression = part.whole(names, report)
                return expression.node, expression.type
            case Constant():
                return part, type_of_literal(part.value)
            case tuple():
                items = [self._resolved(item, names, report) for item in part]
                node = ListOf(0, 0, tuple(item for item, _ in items))
                return node, Array(join_types(type_ for _, type_ in items))
            case dict():
                parts = {key: self._resolved(one, names, report) for key, one in part.items()}
                fields = tuple(Field(key, type_, True) for key, (_, type_) in parts.items())
                node_fields = tuple((key, one) for key, (one, _) in parts.items())
                return ObjectOf(0, 0, node_fields), Object(fields, None)


def value_of(entry: Entry | None, context: Context) -> ValueDraft | None:
    """The value of an entry, of any shape; None without the key, or when nothing is there."""
    if entry is None:
        return None
    node = entry.value
    if node.span.start == node.span.end:
        help = f"write a value, or {entry.key}: null"
        context.report.error("WF114", f"{entry.key!r} is empty", entry.key_span, help)
        return None
    return ValueDraft(context.source, _part_of(node, context), head_of(node.span, context.report))


def expression_of(entry: Entry | None, context: Context, example: str) -> ValueDraft | None:
    """The value of an entry that has to be one `${ … }`, true or false."""
    if entry is None:
        return None
    node = entry.value
    if isinstance(node, ScalarNode) and isinstance(node.value, bool):
        return value_of(entry, context)
    if not isinstance(node, ScalarNode):
        mapping_help = f"write {entry.key}: {example}"
        message = f"{entry.key!r} must be an expression"
        context.report.error("WF107", message, place_of(entry, context.report), mapping_help)
        return None
    draft = value_of(entry, context)
    if draft is None:
        return None
    parts = draft.part.parts if isinstance(draft.part, TemplateDraft) else ()
    if len(parts) == 1 and isinstance(parts[0], Hole):
        return draft
    if not isinstance(draft.part, TemplateDraft) or parts:
        has_hole = any(isinstance(part, Hole) for part in parts)
        message = f"{entry.key!r} takes one expression"
        message += ", and there is text around it" if has_hole else ", got a fixed value"
        if not has_hole and _is_expression(node.text):
            # Most forget the braces once, because 'for' does without them.
            message, example = f"{entry.key!r} takes an expression in braces", f"${{ {node.text} }}"
        context.report.error("WF211", message, draft.span, f"write {entry.key}: {example}")
    return None


def _is_expression(text: str) -> bool:
    """Whether a text is an expression that reads or computes something."""
    try:
        return not isinstance(parse_expression(text), Constant)
    except ExpressionSyntaxError:
        return False


def values_of(entry: Entry | None, context: Context, help: str) -> dict[str, ValueDraft]:
    """Named values; what is broken is reported and left out."""
    mapping = None if entry is None else mapping_of(entry, context.report, help)
    drafts = {one.key: value_of(one, context) for one in (mapping.entries if mapping else ())}
    return {name: draft for name, draft in drafts.items() if draft is not None}


def outside(names: Iterable[tuple[str, Span]], inner: Iterable[str]) -> Iterator[tuple[str, Span]]:
    """Those names that `inner` does not define."""
    known = frozenset(inner)
    return (one for one in names if one[0] not in known)


def _part_of(node: Node, context: Context) -> _Part:
    match node:
        case ScalarNode():
            if isinstance(node.value, str):
                return template_of_scalar(node, context)
            assert not isinstance(node.value, list | dict)
            return Constant(0, 0, node.value)
        case SequenceNode():
            return tuple(_part_of(item, context) for item in node.items)
        case MappingNode():
            return {entry.key: _part_of(entry.value, context) for entry in node.entries}


def _names_of(part: _Part) -> Iterator[tuple[str, Span]]:
    match part:
        case TemplateDraft():
            yield from part.names()
        case Constant():
            return
        case tuple():
            for item in part:
                yield from _names_of(item)
        case dict():
            for item in part.values():
                yield from _names_of(item)
