"""Keywords of arrays in other words: items that differ, that must be there, that are left over."""

from __future__ import annotations

from itertools import permutations
from math import perm
from typing import TYPE_CHECKING

from flowforge.grammars.lowering.positions import IN_PLACE
from flowforge.grammars.lowering.values import any_of, identity, listed_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.grammars.lowering.positions import Path
    from flowforge.grammars.lowering.walk import SchemaWalk
    from flowforge.grammars.schema_dialect import JsonValue

    Schema = dict[str, JsonValue]

_MAX_ORDERS = 400
_MAX_PLACES = 8


def lower_array_keywords(
    walk: SchemaWalk, schema: Schema, lowered: Schema, path: Path
) -> Iterator[JsonValue]:
    """What must hold besides `lowered`, which it may change."""
    if schema.get("uniqueItems") is True:
        yield from _unique(walk, schema, path)
    if "contains" in schema:
        yield from _contains(walk, schema, path)
    if "unevaluatedItems" in schema:
        _unevaluated(walk, schema, lowered, path)


def _unique(walk: SchemaWalk, schema: Schema, path: Path) -> Iterator[JsonValue]:
    """Items of a short list of values are written out in every order."""
    least, most = _count(schema, "minItems", 0), _count(schema, "maxItems", None)
    if most is not None and most <= 1:
        return
    values = _values_of(walk.references.resolve(schema.get("items", True)))
    is_plain = not schema.keys() & {"prefixItems", "additionalItems", "contains"}
    if values is None or not is_plain:
        walk.leave_out(path, "uniqueItems", "the mask does not remember what was written")
        return
    lengths = range(least or 0, min(len(values), len(values) if most is None else most) + 1)
    if sum(perm(len(values), length) for length in lengths) > _MAX_ORDERS:
        walk.leave_out(path, "uniqueItems", "there are too many orders of the items")
        return
    arrays: list[JsonValue] = [
        list(order) for length in lengths for order in permutations(values, length)
    ]
    others: JsonValue = {"type": ["boolean", "null", "number", "object", "string"]}
    yield any_of([{"enum": arrays} if arrays else False, others])


def _values_of(items: JsonValue) -> list[JsonValue] | None:
    """The different values that an item can have, if they are listed."""
    if not isinstance(items, dict) or items.keys() - {"type", "enum", "const"}:
        return None
    values = listed_values(items)
    if values is None or any(isinstance(value, list | dict) for value in values):
        return None
    return list({identity(value): value for value in values}.values())


def _contains(walk: SchemaWalk, schema: Schema, path: Path) -> Iterator[JsonValue]:
    wanted, least = schema["contains"], _count(schema, "minContains", 1)
    most, places = _count(schema, "maxContains", None), _count(schema, "maxItems", None)
    if wanted in (True, {}):
        yield {"minItems": least or 0}
        if most is not None:
            yield {"maxItems": most}
    elif least == 0 and most is None:
        return
    elif least == 1 and most is None and places is not None and 0 < places <= _MAX_PLACES:
        part = walk.lower(wanted, (*path, "contains"), closes=False)
        yield any_of(
            {"minItems": place + 1, walk.prefix_keyword: [*[True] * place, part]}
            for place in range(places)
        )
    else:
        walk.leave_out(path, "contains", "it may be any item that satisfies it")


def _unevaluated(walk: SchemaWalk, schema: Schema, lowered: Schema, path: Path) -> None:
    others = schema["unevaluatedItems"]
    if others is True or isinstance(schema.get("items"), dict | bool):
        return
    if IN_PLACE.isdisjoint(schema) and not schema.keys() & {"$ref", "contains"}:
        lowered["items"] = walk.lower(others, (*path, "unevaluatedItems"))
    else:
        reason = "which items are left over depends on more than their place"
        walk.leave_out(path, "unevaluatedItems", reason)


def _count(schema: Schema, keyword: str, default: int | None) -> int | None:
    value = schema.get(keyword, default)
    return value if isinstance(value, int) else default
