"""What a filter of `value | filter(arguments)` is: a pure function with its types.

A filter says what it makes of a type (`infer`, raising FilterTypeError) and of a value (`apply`,
raising EvaluationError).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.json_values import MAX_TEXT_CHARS, EvaluationError, kind_of_value
from flowforge.language.types import (
    ANY,
    NULL,
    STRING,
    Array,
    Object,
    Type,
    display_type,
    join_types,
    may_be,
    may_be_null,
    members_of,
)
from flowforge.secrets.secret import joined_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.language.program import JsonValue
    from flowforge.language.token_meter import TokenMeter

    TypeRule = Callable[[Type, Sequence[Type]], Type]
    FilterFunction = Callable[[JsonValue, Sequence[JsonValue]], JsonValue]
    TokenFunction = Callable[[JsonValue, Sequence[JsonValue], TokenMeter], JsonValue]

ANY_ARRAY = Array(ANY)
ANY_OBJECT = Object((), ANY)
STRINGS = Array(STRING)


class FilterTypeError(Exception):
    """A filter is put on a value, or given an argument, of a type it cannot take."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a filter; those that may be left out come last."""

    name: str
    type: Type
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter. example: an expression that shows it, for the documentation.

    function: of the value and the arguments; None for a filter on tokens, which has the other.
    """

    name: str
    summary: str
    subject: Type
    arguments: tuple[Argument, ...]
    result: TypeRule
    function: FilterFunction | None
    example: str
    token_function: TokenFunction | None = None

    def infer(self, subject: Type, arguments: Sequence[Type]) -> Type:
        """The type of the result. Raises FilterTypeError."""
        self._check_count(len(arguments))
        for wanted, got in zip(self.arguments, arguments, strict=False):
            if not may_be(got, wanted.type):
                expected, found = display_type(wanted.type), display_type(got)
                message = f"filter {self.name!r} takes {expected} as argument, got {found}"
                raise FilterTypeError(message)
        self._check_subject(subject)
        return self.result(subject, arguments)

    def apply(
        self, subject: JsonValue, arguments: Sequence[JsonValue], meter: TokenMeter | None
    ) -> JsonValue:
        """The result. meter: for filters on tokens. Raises EvaluationError."""
        if self.function is not None:
            value = self.function(subject, arguments)
        elif self.token_function is not None and meter is not None:
            value = self.token_function(subject, arguments, meter)
        else:
            message = f"filter {self.name!r} counts tokens, and there is no model here that does"
            raise EvaluationError("WF406", message)
        if isinstance(value, str):
            check_length(self.name, len(value))
        return value

    def _check_subject(self, subject: Type) -> None:
        allowed = " or ".join(display_type(self.subject).split(" | "))
        if not may_be(subject, self.subject):
            message = f"filter {self.name!r} takes {allowed}, got {display_type(subject)}"
            raise FilterTypeError(message)
        if may_be_null(subject) and not may_be(NULL, self.subject):
            message = f"filter {self.name!r} takes {allowed}, and the value may be null"
            raise FilterTypeError(message)

    def _check_count(self, num_given: int) -> None:
        most = len(self.arguments)
        least = sum(argument.is_required for argument in self.arguments)
        if least <= num_given <= most:
            return
        count = str(most) if most == least else f"{least} to {most}"
        noun = "argument" if count == "1" else "arguments"
        raise FilterTypeError(f"filter {self.name!r} takes {count} {noun}, got {num_given}")


def always(type_: Type) -> TypeRule:
    """The rule of a filter whose result has one type."""
    return lambda _subject, _arguments: type_


def check_length(name: str, num_chars: int) -> None:
    """Refuse a text before it is made. Raises EvaluationError."""
    if num_chars > MAX_TEXT_CHARS:
        message = f"filter {name!r} makes a text of over {MAX_TEXT_CHARS:,} characters"
        raise EvaluationError("WF403", message, "pass less of the value on")


def list_of(name: str, value: JsonValue) -> list[JsonValue]:
    """The value as a list. Raises EvaluationError."""
    if isinstance(value, list):
        return value
    raise mismatch(name, "an array", value)


def object_of(name: str, value: JsonValue) -> dict[str, JsonValue]:
    """The value as an object. Raises EvaluationError."""
    if isinstance(value, dict):
        return value
    raise mismatch(name, "an object", value)


def string_of(name: str, value: JsonValue) -> str:
    """The value as a text. Raises EvaluationError."""
    if isinstance(value, str):
        return value
    raise mismatch(name, "a string", value)


def count_of(name: str, value: JsonValue) -> int:
    """The value as a whole number, 0 or more. Raises EvaluationError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    message = f"filter {name!r} takes a whole number from 0, got {str(value)[:40]}"
    raise EvaluationError("WF404", message)


def mismatch(name: str, wanted: str, value: JsonValue) -> EvaluationError:
    """The error for a value that a filter cannot take."""
    return EvaluationError("WF404", f"filter {name!r} takes {wanted}, got {kind_of_value(value)}")


def joined(name: str, texts: Sequence[str], separator: str) -> str:
    """The texts in one, its length checked before it is made. Raises EvaluationError."""
    check_length(name, sum(map(len, texts)) + len(separator) * len(texts))
    return joined_texts(separator, texts)


def items_of(type_: Type) -> Type:
    """The type of the items of what is a list."""
    items = [member.item for member in members_of(type_) if isinstance(member, Array)]
    return join_types(items) if items else ANY
