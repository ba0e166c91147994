"""The verb `for`: a block once per item of a list, results in item order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.blocks import parse_block, resolve_block
from flowforge.language.expression_nodes import ListOf
from flowforge.language.fields import integer_of, is_safe_name, text_of
from flowforge.language.joins import (
    check_reach,
    names_of_join,
    parse_join,
    resolve_join,
    type_of_list,
)
from flowforge.language.program import ForEach
from flowforge.language.scope import Binding, Names
from flowforge.language.template_parser import Fragment, parse_hole
from flowforge.language.types import (
    ANY,
    AnyType,
    Array,
    display_type,
    join_types,
    may_be_null,
    members_of,
)
from flowforge.language.yaml_nodes import ScalarNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.drafts import BlockDraft, Context
    from flowforge.language.expressions import Expression
    from flowforge.language.joins import JoinDraft
    from flowforge.language.source import Span
    from flowforge.language.template_parser import Hole
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import Entry, MappingNode

STEP_KEYS = ("for", "limit", "join", "do", "yield")
_FOR = re.compile(r"\s*(\S+)\s+in\s+(?P<items>.+?)\s*", re.DOTALL)
_WHOLE_HOLE = re.compile(r"\$\{(?P<inner>[^{}]*)\}")
_FORM = "write for: angle in angles"
_MAX_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class ForDraft:
    """A `for` step before names are resolved."""

    variable: str
    variable_span: Span
    items: Hole
    limit: int | None
    body: BlockDraft
    join: JoinDraft
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the list reads, and what the body reads from outside."""
        yield from self.items.names()
        yield from self.body.references((self.variable,))
        yield from names_of_join(self.join)

    def resolve(self, names: Names, context: Context) -> tuple[ForEach, Type] | None:
        """The verb, and what the join makes of what the body yields."""
        if names.find(self.variable) is not None:
            message = f"loop variable {self.variable!r} hides a name of the same spelling"
            context.report.error("WF106", message, self.variable_span, "choose another name")
        items = self.items.typed(names, context.report)
        item_type = self._item_type(items, context)
        inside = Names({self.variable: Binding("variable", item_type)}, names)
        body = resolve_block(self.body, inside, context)
        if body is None:
            return None
        join = resolve_join(self.join, body.result.type, names, context)
        verb = ForEach(self.variable, items, self.limit, body, join)
        return verb, type_of_list(join, body.result.type)

    def _item_type(self, items: Expression, context: Context) -> Type:
        type_ = items.type
        if isinstance(type_, AnyType):
            return ANY
        arrays = [member for member in members_of(type_) if isinstance(member, Array)]
        if arrays and not may_be_null(type_):
            return join_types(member.item for member in arrays)
        message = f"'for' runs over a list, got {display_type(type_)}"
        help = "write … ?? []" if arrays else "let the step that makes it answer with a JSON array"
        context.report.error("WF210", message, self.items.span, help)
        return ANY


def parse_for(name: str, step: MappingNode, context: Context) -> ForDraft | None:
    """Read a `for` step."""
    entry, do = step.entry("for"), step.entry("do")
    assert entry is not None
    head = _head_of(entry, context)
    join = parse_join(step.entry("join"), context)
    limit = integer_of(step.entry("limit"), context.report, 1, _MAX_LIMIT)
    if do is None:
        message = f"step {name!r} has 'for' and no 'do'"
        context.report.error("WF103", message, entry.key_span, "'do' holds the steps to repeat")
        return None
    body = parse_block(name, do, step.entry("yield"), context)
    if head is None or body is None:
        return None
    items = head[2].node
    if isinstance(items, ListOf):
        check_reach(join, step.entry("join"), len(items.items), context)
    return ForDraft(*head, limit, body, join)


def _head_of(entry: Entry, context: Context) -> tuple[str, Span, Hole] | None:
    report = context.report
    text = text_of(entry, report)
    if text is None:
        return None
    assert isinstance(entry.value, ScalarNode)
    match = _FOR.fullmatch(text)
    if match is None:
        message = f"'for' names a variable and a list, got {text[:60]!r}"
        hole = _WHOLE_HOLE.fullmatch(text)
        help = _FORM if hole is None else f"write for: item in {hole['inner'].strip()}"
        report.error("WF107", message, entry.value.span, help)
        return None
    fragment = Fragment(context.source, entry.value, *match.span(1))
    variable, span = match[1], fragment.place(0, len(match[1]))
    is_safe = is_safe_name(variable, span, "loop variable", report)
    items = _items_of(entry.value, *match.span("items"), context)
    return (variable, span, items) if is_safe and items is not None else None


def _items_of(scalar: ScalarNode, start: int, end: int, context: Context) -> Hole | None:
    fragment = Fragment(context.source, scalar, start, end)
    hole = _WHOLE_HOLE.fullmatch(fragment.text)
    if hole is not None:
        inner = Fragment(context.source, scalar, start + 2, end - 1)
        return parse_hole(inner, context.report)
    if "${" in fragment.text:
        message = "there is text around the expression, and 'for' needs a list"
        span = fragment.place(0, end - start)
        context.report.error("WF211", message, span, _FORM)
        return None
    return parse_hole(fragment, context.report)
