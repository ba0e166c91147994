"""What the editors' schema is put together from: small schemas, each with what it is for."""

from __future__ import annotations

from typing import TypeAlias

from flowforge.language.program import JsonValue

Schema: TypeAlias = dict[str, JsonValue]


def ref(name: str, description: str) -> Schema:
    """What a definition says, and what it is for here."""
    return {"$ref": f"#/$defs/{name}", "description": description}


def integer(least: int, description: str) -> Schema:
    """A whole number of at least so much."""
    return {"type": "integer", "minimum": least, "description": description}


def words(description: str, *allowed: str) -> Schema:
    """One of some words."""
    return {"enum": [*allowed], "description": description}


def strings(description: str) -> Schema:
    """A list of texts; numbers and booleans are their characters."""
    item: Schema = {"type": ["string", "number", "boolean"]}
    return {"type": "array", "items": item, "minItems": 1, "description": description}


def named(value: JsonValue, description: str) -> Schema:
    """Values by name."""
    return {"type": "object", "additionalProperties": value, "description": description}
