"""Filters on lists: their order, their items, and one value out of many."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from flowforge.language.arithmetic import compute, number_of_value
from flowforge.language.filter_rules import (
    ANY_ARRAY,
    ANY_OBJECT,
    Argument,
    Filter,
    always,
    count_of,
    items_of,
    joined,
    list_of,
    object_of,
    string_of,
)
from flowforge.language.json_values import (
    EvaluationError,
    json_equal,
    json_key,
    order_of_values,
    text_of_value,
    within_limits,
)
from flowforge.language.types import (
    ANY,
    INTEGER,
    NULL,
    NUMBER,
    STRING,
    Array,
    Object,
    Type,
    join_types,
    members_of,
    without_null,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.language.filter_rules import FilterFunction, TypeRule
    from flowforge.language.program import JsonValue


def _same(subject: Type, _arguments: Sequence[Type]) -> Type:
    return Array(items_of(subject))


def _item_or_null(subject: Type, _arguments: Sequence[Type]) -> Type:
    return join_types([items_of(subject), NULL])


def _with_item(subject: Type, arguments: Sequence[Type]) -> Type:
    return Array(_joined_items(subject, arguments[0]))


def _with_items(subject: Type, arguments: Sequence[Type]) -> Type:
    return Array(_joined_items(subject, items_of(arguments[0])))


def _joined_items(subject: Type, other: Type) -> Type:
    # An empty list written out has items of no type, which must not hide the others' type.
    item = items_of(subject)
    return other if item == ANY else join_types([item, other])


def _without_nulls(subject: Type, _arguments: Sequence[Type]) -> Type:
    return Array(without_null(items_of(subject)))


def _fields_of(subject: Type, _arguments: Sequence[Type]) -> Type:
    # Which field it is, only the value of the argument says; inference narrows it there.
    return Array(ANY)


def _flat(subject: Type, _arguments: Sequence[Type]) -> Type:
    return Array(items_of(items_of(subject)))


def _in_pairs(subject: Type, arguments: Sequence[Type]) -> Type:
    return Array(Array(join_types([items_of(subject), items_of(arguments[0])])))


def _in_chunks(subject: Type, _arguments: Sequence[Type]) -> Type:
    return Array(Array(items_of(subject)))


def _join(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    separator = string_of("join", arguments[0]) if arguments else ""
    return joined("join", [text_of_value(item) for item in list_of("join", value)], separator)


def _bullets(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    # Further lines of an item are indented, so that they stay part of it.
    items = [text_of_value(item).replace("\n", "\n  ") for item in list_of("bullets", value)]
    return joined("bullets", [f"- {item}" for item in items], "\n")


def _numbered(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    items = [text_of_value(item).replace("\n", "\n   ") for item in list_of("numbered", value)]
    return joined("numbered", [f"{idx}. {item}" for idx, item in enumerate(items, 1)], "\n")


def _first(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    items = list_of("first", value)
    return items[0] if items else None


def _last(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    items = list_of("last", value)
    return items[-1] if items else None


def _head(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    return list_of("head", value)[: count_of("head", arguments[0])]


def _tail(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    items = list_of("tail", value)
    return items[max(0, len(items) - count_of("tail", arguments[0])) :]


def _append(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    return within_limits([*list_of("append", value), arguments[0]])


def _concat(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    return within_limits([*list_of("concat", value), *list_of("concat", arguments[0])])


def _flatten(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    items: list[JsonValue] = []
    for item in list_of("flatten", value):
        items += list_of("flatten", item)
    return within_limits(items)


def _zip(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    pairs = zip(list_of("zip", value), list_of("zip", arguments[0]), strict=False)
    return within_limits([[item, other] for item, other in pairs])


def _chunks(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    items, size = list_of("chunks", value), count_of("chunks", arguments[0])
    if size == 0:
        raise EvaluationError("WF404", "filter 'chunks' takes a whole number from 1, got 0")
    return within_limits([items[start : start + size] for start in range(0, len(items), size)])


def _reverse(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return list_of("reverse", value)[::-1]


def _unique(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    key_to_item: dict[str, JsonValue] = {}
    for item in list_of("unique", value):
        key_to_item.setdefault(json_key(item), item)
    return [*key_to_item.values()]


def _compact(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    return [item for item in list_of("compact", value) if item is not None]


def _sort(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    items = list_of("sort", value)
    key = functools.cmp_to_key(order_of_values)
    if not arguments:
        return sorted(items, key=key)
    name = string_of("sort", arguments[0])
    return sorted(items, key=lambda item: key(object_of("sort", item).get(name)))


def _pluck(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    name = string_of("pluck", arguments[0])
    return [object_of("pluck", item).get(name) for item in list_of("pluck", value)]


def _where(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    name = string_of("where", arguments[0])
    wanted = arguments[1] if len(arguments) > 1 else True
    items = list_of("where", value)
    return [item for item in items if json_equal(object_of("where", item).get(name), wanted)]


def _count(value: JsonValue, arguments: Sequence[JsonValue]) -> JsonValue:
    return sum(json_equal(item, arguments[0]) for item in list_of("count", value))


def _sum(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    total: JsonValue = 0
    for item in list_of("sum", value):
        total = compute("+", total, item)
    return total


def _least(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    items = [_ordered("min", item) for item in list_of("min", value)]
    return min(items, key=functools.cmp_to_key(order_of_values)) if items else None


def _most(value: JsonValue, _arguments: Sequence[JsonValue]) -> JsonValue:
    items = [_ordered("max", item) for item in list_of("max", value)]
    return max(items, key=functools.cmp_to_key(order_of_values)) if items else None


def _ordered(name: str, item: JsonValue) -> JsonValue:
    if isinstance(item, str):
        return item
    if isinstance(item, int | float) and not isinstance(item, bool):
        return number_of_value(item)
    raise EvaluationError("WF404", f"filter {name!r} takes a list of numbers or of strings")


def _list_filter(
    name: str,
    summary: str,
    result: TypeRule,
    function: FilterFunction,
    example: str,
    arguments: tuple[Argument, ...] = (),
    subject: Type = ANY_ARRAY,
) -> Filter:
    return Filter(name, summary, subject, arguments, result, function, example)


_OBJECTS = Array(ANY_OBJECT)
_COUNT = (Argument("count", INTEGER),)
_STRING = always(STRING)
LIST_FILTERS = (
    _list_filter(
        "join",
        "a list's items as one text, with a separator between them",
        _STRING,
        _join,
        '["a", "b"] | join(", ")',
        (Argument("separator", STRING, False),),
    ),
    _list_filter(
        "bullets", "a list's items as lines that begin with '- '", _STRING, _bullets,
        '["a", "b"] | bullets',
    ),
    _list_filter(
        "numbered", "a list's items as lines that begin with '1. ', '2. ' and so on", _STRING,
        _numbered, '["a", "b"] | numbered',
    ),
    _list_filter(
        "first", "a list's first item, null when it is empty", _item_or_null, _first,
        '["a", "b"] | first',
    ),
    _list_filter(
        "last", "a list's last item, null when it is empty", _item_or_null, _last,
        '["a", "b"] | last',
    ),
    _list_filter(
        "head", "a list's first items, at most so many", _same, _head, "[1, 2, 3] | head(2)",
        _COUNT,
    ),
    _list_filter(
        "tail", "a list's last items, at most so many", _same, _tail, "[1, 2, 3] | tail(2)",
        _COUNT,
    ),
    _list_filter(
        "append", "a list with one more item at its end", _with_item, _append,
        "[1, 2] | append(3)", (Argument("item", ANY),),
    ),
    _list_filter(
        "concat", "a list and another one behind it", _with_items, _concat,
        "[1, 2] | concat([3])", (Argument("list", ANY_ARRAY),),
    ),
    _list_filter(
        "flatten", "the items of a list's lists in one list", _flat, _flatten,
        "[[1, 2], [], [3]] | flatten", subject=Array(ANY_ARRAY),
    ),
    _list_filter(
        "zip", "a list's items in pairs with those of another, as far as both go", _in_pairs, _zip,
        '["a", "b"] | zip([1, 2])', (Argument("list", ANY_ARRAY),),
    ),
    _list_filter(
        "chunks", "a list in lists of so many items; the last may have fewer", _in_chunks, _chunks,
        "[1, 2, 3] | chunks(2)", (Argument("size", INTEGER),),
    ),
    _list_filter("reverse", "a list from its end", _same, _reverse, "[1, 2, 3] | reverse"),
    _list_filter(
        "sort", "a list of numbers or of strings in order; of objects, by a field", _same, _sort,
        '["b", "a"] | sort', (Argument("field", STRING, False),),
    ),
    _list_filter(
        "unique", "a list with each value once, where it comes first", _same, _unique,
        '["b", "a", "b"] | unique',
    ),
    _list_filter(
        "compact", "a list without its nulls", _without_nulls, _compact, '["a", null] | compact'
    ),
    _list_filter(
        "pluck", "one field of each object of a list, null where it is absent", _fields_of, _pluck,
        'inputs.rows | pluck("name")', (Argument("field", STRING),), _OBJECTS,
    ),
    _list_filter(
        "where", "the objects of a list whose field has a value, true if none is given", _same,
        _where, 'inputs.rows | where("ok") | pluck("name")',
        (Argument("field", STRING), Argument("value", ANY, False)), _OBJECTS,
    ),
    _list_filter(
        "count", "how many items of a list equal a value", always(INTEGER), _count,
        '["yes", "no", "yes"] | count("yes")', (Argument("value", ANY),),
    ),
    _list_filter(
        "sum", "the sum of a list of numbers", lambda subject, _arguments: _sum_type(subject),
        _sum, "[1, 2, 3] | sum",
    ),
    _list_filter(
        "min", "the least number or string of a list, null when it is empty", _item_or_null,
        _least, "[2, 1, 3] | min",
    ),
    _list_filter(
        "max", "the greatest number or string of a list, null when it is empty", _item_or_null,
        _most, "[2, 1, 3] | max",
    ),
)  # fmt: skip


def _sum_type(subject: Type) -> Type:
    return INTEGER if set(members_of(items_of(subject))) == {INTEGER} else NUMBER


def field_types(subject: Type, name: str) -> Type:
    """The type of `list | pluck("name")`."""
    types: list[Type] = []
    for member in members_of(items_of(subject)):
        field = member.field(name) if isinstance(member, Object) else None
        if field is None:
            return ANY_ARRAY
        types.append(field.type if field.is_required else join_types([field.type, NULL]))
    return Array(join_types(types))
