"""The types of expressions, with every slip reported once: what is broken has type `any`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.expression_nodes import (
    Arithmetic,
    Coalesce,
    Comparison,
    Conditional,
    Constant,
    FieldOf,
    ItemOf,
    ListOf,
    Logical,
    Name,
    Negative,
    Not,
    ObjectOf,
    Piped,
)
from flowforge.language.filter_rules import FilterTypeError
from flowforge.language.filters import FILTERS
from flowforge.language.foreign_words import help_for_filter, help_for_name
from flowforge.language.list_filters import field_types
from flowforge.language.secrets import SECRETS
from flowforge.language.types import (
    ANY,
    BOOLEAN,
    INTEGER,
    NULL,
    NUMBER,
    STRING,
    AnyType,
    Array,
    Choice,
    Field,
    Object,
    Type,
    display_type,
    join_types,
    may_be,
    may_be_null,
    members_of,
    type_of_literal,
    without_null,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.language.expression_nodes import Node
    from flowforge.language.scope import Names, Report
    from flowforge.language.source import Span

_ANY_ARRAY = Array(ANY)
_ANY_OBJECT = Object((), ANY)
# Under these, other systems keep the text that a step comes to.
_WHOLE = ("text", "output", "content", "result", "value", "answer")


@dataclass(frozen=True, slots=True)
class Inference:
    """Infers one expression's types. place: its characters' span in the file."""

    names: Names
    report: Report
    place: Callable[[int, int], Span]

    def infer(self, node: Node) -> Type:
        """The type of a node; problems go to the report."""
        match node:
            case Name():
                return self._name(node)
            case Constant():
                return type_of_literal(node.value)
            case ListOf():
                return Array(join_types([self.infer(item) for item in node.items]))
            case ObjectOf():
                fields = (Field(name, self.infer(value), True) for name, value in node.fields)
                return Object(tuple(fields), None)
            case FieldOf():
                return self._field(node)
            case ItemOf():
                return self._item(node)
            case Piped():
                return self._piped(node)
            case Coalesce():
                return self._coalesce(node)
            case Arithmetic():
                return self._arithmetic(node)
            case Negative():
                return self._number(node.operand)
            case Comparison():
                return self._comparison(node)
            case Not():
                self._condition(node.operand)
                return BOOLEAN
            case Logical():
                self._condition(node.left)
                self._condition(node.right)
                return BOOLEAN
            case Conditional():
                self._condition(node.condition)
                return join_types([self.infer(node.chosen), self.infer(node.otherwise)])

    def _error(self, code: str, message: str, start: int, end: int, help: str | None) -> Type:
        self.report.error(code, message, self.place(start, end), help)
        return ANY

    def _name(self, node: Name) -> Type:
        binding = self.names.find(node.name)
        if binding is not None:
            return binding.type
        help: str | None
        if node.name == SECRETS:
            help = "they go to 'with' of a call, and to 'headers' and 'env' of a server"
            return self._error("WF141", "secrets cannot be read here", node.start, node.end, help)
        visible = self.names.visible()
        otherwise = "names in scope: " + ", ".join(sorted(visible)[:8]) + "; a text has quotes"
        inputs = visible.get("inputs")
        if inputs and isinstance(inputs.type, Object) and inputs.type.field(node.name):
            help = f"an input is read as 'inputs.{node.name}'"
        elif node.name in ("steps", "outputs"):
            help = "the value of a step is read by the step's name alone, as in ${ draft }"
        else:
            help = help_for_name(node.name, visible, otherwise)
        if "-" in node.name and all(part in visible for part in node.name.split("-", 1)[:1]):
            help = "names may hold '-': write spaces around it to subtract"
        return self._error("WF202", f"unknown name {node.name!r}", node.start, node.end, help)

    def _field(self, node: FieldOf) -> Type:
        subject = self.infer(node.subject)
        shown = display_type(subject)
        if may_be_null(subject):
            message = f"field {node.field!r} of a value that may be null ({shown})"
            return self._error("WF206", message, node.field_start, node.end, "put '??' before it")
        if not may_be(subject, _ANY_OBJECT):
            message = f"field {node.field!r} of {shown}, which has no fields"
            help = f"'| {node.field}' applies a filter" if node.field in FILTERS else None
            if node.field in _WHOLE and may_be(subject, STRING):
                help = f"the value is the text itself: leave '.{node.field}' out"
            return self._error("WF206", message, node.field_start, node.end, help)
        types = [_field_type(member, node.field) for member in members_of(subject)]
        found = [type_ for type_ in types if type_ is not None]
        if found:
            return join_types(found)
        return self._unknown_field(node, subject)

    def _unknown_field(self, node: FieldOf, subject: Type) -> Type:
        known = [
            field.name
            for member in members_of(subject)
            if isinstance(member, Object)
            for field in member.fields
        ]
        path = f"{node.subject.name}." if isinstance(node.subject, Name) else ""
        owner = node.subject.name if isinstance(node.subject, Name) else ""
        declared = {"inputs": f"{{ {node.field}: string }}", SECRETS: f"[{node.field}]"}
        otherwise = "known fields: " + ", ".join(known[:8]) if known else "it has no fields"
        if owner in declared and not known:
            otherwise = f"declare it: '{owner}: {declared[owner]}'"
        what = owner.removesuffix("s") if owner in declared else "field"
        message = f"unknown {what} '{path}{node.field}'"
        help = did_you_mean(node.field, known, otherwise)
        return self._error("WF203", message, node.field_start, node.end, help)

    def _item(self, node: ItemOf) -> Type:
        subject, index = self.infer(node.subject), self.infer(node.index)
        if may_be_null(subject):
            message = f"an item of a value that may be null ({display_type(subject)})"
            return self._error("WF206", message, node.start, node.end, "put '?? []' before it")
        literal = node.index.value if isinstance(node.index, Constant) else None
        types: list[Type] = []
        for member in members_of(subject):
            if isinstance(member, AnyType):
                return ANY
            if isinstance(member, Array) and may_be(index, INTEGER):
                types.append(member.item)
            if isinstance(member, Object) and may_be(index, STRING):
                named = _field_type(member, literal) if isinstance(literal, str) else None
                types.append(named or ANY)
        if types:
            return join_types(types)
        message = f"{display_type(subject)} has no item at {display_type(index)}"
        help = "a list takes an integer, an object a string"
        return self._error("WF206", message, node.start, node.end, help)

    def _piped(self, node: Piped) -> Type:
        subject = self.infer(node.subject)
        arguments = [self.infer(argument) for argument in node.arguments]
        start, end = node.filter_start, node.filter_start + len(node.filter)
        filter_ = FILTERS.get(node.filter)
        if filter_ is None:
            help = help_for_filter(node.filter, FILTERS)
            return self._error("WF204", f"unknown filter {node.filter!r}", start, end, help)
        try:
            type_ = filter_.infer(subject, arguments)
        except FilterTypeError as error:
            is_null = "may be null" in str(error)
            advice = "put '??' before the filter, in parentheses" if is_null else filter_.summary
            return self._error("WF205", str(error), start, end, advice)
        name = node.arguments[0] if node.filter == "pluck" else None
        if isinstance(name, Constant) and isinstance(name.value, str):
            return field_types(subject, name.value)
        return type_

    def _coalesce(self, node: Coalesce) -> Type:
        left, right = self.infer(node.left), self.infer(node.right)
        if left == NULL:
            return right
        if isinstance(left, AnyType):
            return ANY
        return join_types([without_null(left), right]) if may_be_null(left) else left

    def _arithmetic(self, node: Arithmetic) -> Type:
        types = (self._number(node.left), self._number(node.right))
        return INTEGER if types == (INTEGER, INTEGER) and node.operator != "/" else NUMBER

    def _number(self, node: Node) -> Type:
        type_ = self.infer(node)
        if may_be(type_, NUMBER) and not may_be_null(type_):
            return INTEGER if type_ == INTEGER else NUMBER
        message = f"expected a number, got {display_type(type_)}"
        help: str | None
        if may_be(type_, NUMBER):
            help = "put it in parentheses with a value for null: (… ?? 0)"
        elif may_be(type_, STRING):
            help = "texts are joined by writing them side by side, or with 'join'"
        else:
            help = "lists are put together with 'concat'" if may_be(type_, _ANY_ARRAY) else None
        return self._error("WF206", message, node.start, node.end, help)

    def _comparison(self, node: Comparison) -> Type:
        left, right = self.infer(node.left), self.infer(node.right)
        shown = f"{display_type(left)} and {display_type(right)}"
        if node.operator in ("==", "!="):
            if not may_be(left, right):
                message = f"{shown} are never equal"
                help = _meant_choice(left, right) or _meant_choice(right, left)
                self.report.warning("WF212", message, self.place(node.start, node.end), help)
        elif node.operator in ("in", "not in"):
            is_text = may_be(left, STRING) and may_be(right, join_types([STRING, _ANY_OBJECT]))
            if not is_text and not may_be(right, _ANY_ARRAY):
                message = f"{display_type(left)} cannot be looked for in {display_type(right)}"
                help = "'in' takes a list, an object's keys, or two strings"
                return self._error("WF206", message, node.start, node.end, help)
        elif not any(may_be(left, one) and may_be(right, one) for one in (NUMBER, STRING)):
            help = "compare two numbers or two strings"
            return self._error("WF206", f"{shown} have no order", node.start, node.end, help)
        return BOOLEAN

    def _condition(self, node: Node) -> None:
        type_ = self.infer(node)
        if not may_be(type_, BOOLEAN) or may_be_null(type_):
            message = f"expected a boolean, got {display_type(type_)}"
            help = "compare the value with something, for example != null"
            self._error("WF206", message, node.start, node.end, help)


def _meant_choice(known: Type, written: Type) -> str | None:
    if isinstance(known, Choice) and isinstance(written, Choice) and len(written.values) == 1:
        return did_you_mean(written.values[0], known.values)
    return None


def _field_type(member: Type, name: str) -> Type | None:
    if isinstance(member, AnyType):
        return ANY
    if not isinstance(member, Object):
        return None
    field = member.field(name)
    if field is None:
        return None if member.extra is None else join_types([member.extra, NULL])
    return field.type if field.is_required else join_types([field.type, NULL])
