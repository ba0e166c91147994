"""Evaluation of expressions: total, bounded, without effects.

Fields are looked up among an object's own keys only, never as attributes, so no method shadows
them and nothing of Python can be reached. A field that is absent reads as null; an index beyond the
end of a list is an error. Who counts tokens comes with the names, in a `MeasuredScope`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.arithmetic import compute, negative
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
from flowforge.language.filters import FILTERS
from flowforge.language.json_values import (
    EvaluationError,
    json_equal,
    kind_of_value,
    order_of_values,
    within_limits,
)
from flowforge.language.token_meter import MeasuredScope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.expression_nodes import ComparisonOperator, Node
    from flowforge.language.program import JsonValue


def evaluate_node(node: Node, scope: Mapping[str, JsonValue]) -> JsonValue:
    """The value of an expression's tree. Raises EvaluationError."""
    try:
        return _evaluate(node, scope)
    except RecursionError as error:
        raise EvaluationError("WF403", "a value is nested too deep") from error


def _evaluate(node: Node, scope: Mapping[str, JsonValue]) -> JsonValue:
    match node:
        case Name():
            return _value_of_name(node.name, scope)
        case Constant():
            return node.value
        case ListOf():
            return within_limits([_evaluate(item, scope) for item in node.items])
        case ObjectOf():
            return within_limits({name: _evaluate(value, scope) for name, value in node.fields})
        case FieldOf():
            return _field(_evaluate(node.subject, scope), node.field)
        case ItemOf():
            return _item(_evaluate(node.subject, scope), _evaluate(node.index, scope))
        case Piped():
            return _piped(node, scope)
        case Coalesce():
            left = _evaluate(node.left, scope)
            return _evaluate(node.right, scope) if left is None else left
        case Arithmetic():
            return compute(node.operator, _evaluate(node.left, scope), _evaluate(node.right, scope))
        case Negative():
            return negative(_evaluate(node.operand, scope))
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
    try:
        return scope[name]
    except KeyError:
        raise EvaluationError("WF404", f"{name!r} has no value here") from None


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
    filter_ = FILTERS.get(node.filter)
    if filter_ is None:
        raise EvaluationError("WF404", f"there is no filter {node.filter!r}")
    arguments = [_evaluate(argument, scope) for argument in node.arguments]
    meter = None
    if filter_.token_function is not None and isinstance(scope, MeasuredScope):
        meter = scope.token_meter
    return filter_.apply(_evaluate(node.subject, scope), arguments, meter)


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
            order = order_of_values(left, right)
            return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]


def _is_in(item: JsonValue, container: JsonValue) -> bool:
    if isinstance(container, list):
        return any(json_equal(item, other) for other in container)
    if isinstance(container, dict | str) and isinstance(item, str):
        return item in container
    message = f"{kind_of_value(item)} cannot be looked for in {kind_of_value(container)}"
    raise EvaluationError("WF404", message, "'in' takes a list, an object's keys, or two strings")
