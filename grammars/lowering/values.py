"""JSON values as JSON Schema sees them: their types, and when two are equal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowforge.grammars.schema_dialect import JsonValue

TYPES = ("array", "boolean", "null", "number", "object", "string")


def type_of(value: JsonValue) -> str:
    """The value's type; 'number' for integers too."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"


def identity(value: JsonValue) -> str:
    """A text that equal values share and no others: 1 equals 1.0 and not true."""
    return json.dumps(with_integers(value), sort_keys=True)


def with_integers(value: JsonValue) -> JsonValue:
    """The same value with 1 for 1.0: what a model writes and a mask expects."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [with_integers(item) for item in value]
    if isinstance(value, dict):
        return {key: with_integers(inner) for key, inner in value.items()}
    return value


def listed_values(schema: Mapping[str, JsonValue]) -> list[JsonValue] | None:
    """The only values that a schema allows, by its `const` or `enum`; None where it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def any_of(schemas: Iterable[JsonValue]) -> JsonValue:
    """A schema for what any of these allows, without needless parts."""
    parts = [schema for schema in schemas if schema is not False]
    if any(part is True or part == {} for part in parts):
        return True
    if not parts:
        return False
    return parts[0] if len(parts) == 1 else {"anyOf": parts}


def all_of(schemas: Iterable[JsonValue]) -> JsonValue:
    """A schema for what all of these allow, without needless parts."""
    parts = [schema for schema in schemas if schema is not True and schema != {}]
    if any(part is False for part in parts):
        return False
    if not parts:
        return True
    return parts[0] if len(parts) == 1 else {"allOf": parts}
