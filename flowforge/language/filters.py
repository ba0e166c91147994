"""All filters by name, and those that take more than one kind of value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.arithmetic import number_of_value
from flowforge.language.filter_rules import (
    ANY_ARRAY,
    ANY_OBJECT,
    STRINGS,
    Argument,
    Filter,
    always,
    count_of,
    items_of,
    mismatch,
    object_of,
)
from flowforge.language.json_values import finite_number, within_limits
from flowforge.language.list_filters import LIST_FILTERS
from flowforge.language.text_filters import TEXT_FILTERS
from flowforge.language.token_filters import TOKEN_FILTERS
from flowforge.language.types import (
    ANY,
    INTEGER,
    NULL,
    NUMBER,
    STRING,
    Array,
    Field,
    Object,
    Type,
    join_types,
    members_of,
    without_null,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.language.program import JsonValue

_MAX_DIGITS = 12


def _values_of(subject: Type, _arguments: Sequence[Type]) -> Type:
    types: list[Type] = []
    for member in members_of(subject):
        if not isinstance(member, Object):
            return ANY_ARRAY
        types += [field.type if field.is_required else ANY for field in member.fields]
        types += [] if member.extra is None else [member.extra]
    return Array(join_types(types))


def _defaulted(subject: Type, arguments: Sequence[Type]) -> Type:
    if subject in (ANY, NULL):
        return arguments[0] if subject == NULL else ANY
    return join_types([without_null(subject), arguments[0]])


def _rounded(_subject: Type, arguments: Sequence[Type]) -> Type:
    return NUMBER if arguments else INTEGER


def _len(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    if isinstance(value, str | list | dict):
        return len(value)
    raise mismatch("len", "a string, an array or an object", value)


def _keys(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return [*object_of("keys", value)]


def _values(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return [*object_of("values", value).values()]


def _items_of_object(subject: Type, arguments: Sequence[Type]) -> Type:
    values = items_of(_values_of(subject, arguments))
    return Array(Object((Field("key", STRING, True), Field("value", values, True)), None))


def _items(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    pairs = object_of("items", value).items()
    return within_limits([{"key": key, "value": one} for key, one in pairs])


def _default(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    return arguments[0] if value is None else value


def _round(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    number = finite_number(number_of_value(value))
    if not arguments:
        return round(number)
    return round(number, min(count_of("round", arguments[0]), _MAX_DIGITS))


_ALL = (
    *TEXT_FILTERS,
    *LIST_FILTERS,
    *TOKEN_FILTERS,
    Filter(
        "len",
        "characters of a text, items of a list, fields of an object",
        join_types((STRING, ANY_ARRAY, ANY_OBJECT)),
        (),
        always(INTEGER),
        _len,
        '"four" | len',
    ),
    Filter(
        "keys",
        "the names of an object's fields",
        ANY_OBJECT,
        (),
        always(STRINGS),
        _keys,
        "inputs.rows[0] | keys",
    ),
    Filter(
        "values",
        "the values of an object's fields",
        ANY_OBJECT,
        (),
        _values_of,
        _values,
        "inputs.rows[0] | values",
    ),
    Filter(
        "items",
        "an object's fields as a list of `{key, value}`, to loop over",
        ANY_OBJECT,
        (),
        _items_of_object,
        _items,
        "inputs.rows[0] | items",
    ),
    Filter(
        "default",
        "the argument where the value is null, like '??'",
        ANY,
        (Argument("value", ANY),),
        _defaulted,
        _default,
        'null | default("none")',
    ),
    Filter(
        "round",
        "the nearest whole number, or one with so many digits; halves go to the even one",
        NUMBER,
        (Argument("digits", INTEGER, False),),
        _rounded,
        _round,
        "3.14159 | round(2)",
    ),
)
FILTERS: Mapping[str, Filter] = {filter_.name: filter_ for filter_ in _ALL}
