"""Arithmetic of expressions: JSON numbers, always finite, true and false are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.json_values import EvaluationError, finite_number, kind_of_value

if TYPE_CHECKING:
    from flowforge.language.expression_nodes import ArithmeticOperator
    from flowforge.language.program import JsonValue


def compute(operator: ArithmeticOperator, left: JsonValue, right: JsonValue) -> JsonValue:
    """The number. Division always gives a fraction; `%` has the sign of its right side.

    Raises EvaluationError.
    """
    one, other = number_of_value(left), number_of_value(right)
    if operator in ("/", "%") and other == 0:
        raise EvaluationError("WF405", "division by zero", "compare the divisor with 0 first")
    try:
        return finite_number(_result(operator, one, other))
    except OverflowError as error:
        raise EvaluationError("WF403", "a number that grows too large", None) from error


def negative(value: JsonValue) -> JsonValue:
    """The number with its sign changed. Raises EvaluationError."""
    return -number_of_value(value)


def number_of_value(value: JsonValue) -> int | float:
    """The value as a number. Raises EvaluationError when it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    help = "texts are joined by writing them side by side, or with 'join'"
    message = f"expected a number, got {kind_of_value(value)}"
    raise EvaluationError("WF404", message, help if isinstance(value, str) else None)


def _result(operator: ArithmeticOperator, left: float, right: float) -> float:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case "%":
            return left % right
