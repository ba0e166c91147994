"""Evaluation of expressions: total, bounded, without effects.

Fields are looked up among an object's own keys only, never as attributes, so no method shadows
them and nothing of Python can be reached. A field that is absent reads as null; an index beyond the
end of a list is an error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flowforge.language.expression_nodes import (
    Coalesce,
    Comparison,
    Conditional,
    Constant,
    FieldOf,
    ItemOf,
    ListOf,
    Logical,
    Name,
    Not,
    Piped,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.expression_nodes import ComparisonOperator, Node
    from flowforge.language.program import JsonValue

MAX_TEXT_CHARS = 8_000_000


class EvaluationError(Exception):
    """A value does not allow what an expression asks of it; the expression adds its place."""

    def __init__(self, code: str, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.help = help


def evaluate_node(node: Node, scope: Mapping[str, JsonValue]) -> JsonValue:
    """The value of an expression's tree. Raises EvaluationError."""
    try:
        return _evaluate(node, scope)
    except RecursionError as error:
        raise EvaluationError("WF403", "a value is nested too deep") from error


def text_of_value(value: JsonValue) -> str:
    """How a value is written into text. Raises EvaluationError, for null first of all."""
    if isinstance(value, str):
        return value
    if value is None:
        help = 'say what to write instead: ${ … ?? "nothing" }'
        raise EvaluationError("WF401", "null cannot be written into text", help)
    return json_text(value)


def json_text(value: JsonValue) -> str:
    """One line of JSON. Raises EvaluationError for what JSON cannot say."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise EvaluationError("WF403", f"the value cannot be written as JSON: {error}") from error


def kind_of_value(value: JsonValue) -> str:
    """The word for a value's kind in messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"


def json_equal(one: JsonValue, other: JsonValue) -> bool:
    """Equality of JSON values: 1 equals 1.0, and true is no number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[key], other[key]) for key in one)
    return one == other


def _evaluate(node: Node, scope: Mapping[str, JsonValue]) -> JsonValue:
    match node:
        case Name():
            return _value_of_name(node.name, scope)
        case Constant():
            return node.value
        case ListOf():
            return [_evaluate(item, scope) for item in node.items]
        case FieldOf():
            return _field(_evaluate(node.subject, scope), node.field)
        case ItemOf():
            return _item(_evaluate(node.subject, scope), _evaluate(node.index, scope))
        case Piped():
            return _piped(node, scope)
        case Coalesce():
            left = _evaluate(node.left, scope)
            return _evaluate(node.right, scope) if left is None else left
        case Comparison():
            return _compare(
                node.operator, _evaluate(node.left, scope), _evaluate(node.right, scope)
            )
        case Not():
            return not _truth(_evaluate(node.operand, scope))
        case Logical():
            left_holds = _truth(_evaluate(node.left, scope))
            if left_holds == (node.operator == "or"):
                return left_holds
            return _truth(_evaluate(node.right, scope))
        case Conditional():
            holds = _truth(_evaluate(node.condition, scope))
            return _evaluate(node.chosen if holds else node.otherwise, scope)


def _value_of_name(name: str, scope: Mapping[str, JsonValue]) -> JsonValue:
    if name not in scope:
        raise EvaluationError("WF404", f"{name!r} has no value here")
    return scope[name]


def _field(subject: JsonValue, field: str) -> JsonValue:
    if isinstance(subject, dict):
        return subject.get(field)
    raise EvaluationError("WF404", f"field {field!r} of {kind_of_value(subject)}, not of an object")


def _item(subject: JsonValue, index: JsonValue) -> JsonValue:
    if isinstance(subject, dict) and isinstance(index, str):
        return subject.get(index)
    if isinstance(subject, list) and isinstance(index, int) and not isinstance(index, bool):
        if -len(subject) <= index < len(subject):
            return subject[index]
        message = f"index {index} is beyond the list, which has {len(subject)} items"
        raise EvaluationError("WF402", message, "'first' and 'last' give null for an empty list")
    message = f"{kind_of_value(subject)} has no item at {kind_of_value(index)}"
    raise EvaluationError("WF404", message, "a list takes an integer, an object a string")


def _piped(node: Piped, scope: Mapping[str, JsonValue]) -> JsonValue:
    # Late, because filters use this module's texts and kinds.
    from flowforge.language.filters import FILTERS

    filter_ = FILTERS.get(node.filter)
    if filter_ is None:
        raise EvaluationError("WF404", f"there is no filter {node.filter!r}")
    arguments = [_evaluate(argument, scope) for argument in node.arguments]
    return filter_.apply(_evaluate(node.subject, scope), arguments)


def _truth(value: JsonValue) -> bool:
    if isinstance(value, bool):
        return value
    message = f"expected a boolean, got {kind_of_value(value)}"
    raise EvaluationError("WF404", message, "compare the value with something, for example != null")


def _compare(operator: ComparisonOperator, left: JsonValue, right: JsonValue) -> bool:
    match operator:
        case "==":
            return json_equal(left, right)
        case "!=":
            return not json_equal(left, right)
        case "in":
            return _is_in(left, right)
        case "not in":
            return not _is_in(left, right)
        case "<" | "<=" | ">" | ">=":
            order = _order(left, right)
            return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]


def _order(left: JsonValue, right: JsonValue) -> int:
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    are_booleans = isinstance(left, bool) or isinstance(right, bool)
    if isinstance(left, int | float) and isinstance(right, int | float) and not are_booleans:
        return (left > right) - (left < right)
    message = f"{kind_of_value(left)} and {kind_of_value(right)} have no order"
    raise EvaluationError("WF404", message, "compare two numbers or two strings")


def _is_in(item: JsonValue, container: JsonValue) -> bool:
    if isinstance(container, list):
        return any(json_equal(item, other) for other in container)
    if isinstance(container, dict | str) and isinstance(item, str):
        return item in container
    message = f"{kind_of_value(item)} cannot be looked for in {kind_of_value(container)}"
    raise EvaluationError("WF404", message, "'in' takes a list, an object's keys, or two strings")
