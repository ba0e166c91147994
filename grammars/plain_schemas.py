"""JSON Schemas that are sure to compile into a mask, as most of a workflow's are.

To find the others out, llguidance compiles them; importing it takes as long as checking a hundred
steps. A property test holds this reading to llguidance's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.grammars.schema_dialect import JsonValue

_KEYWORDS: dict[JsonValue, frozenset[str]] = {
    "array": frozenset({"items", "minItems", "maxItems"}),
    "boolean": frozenset(),
    "integer": frozenset({"minimum", "maximum"}),
    "null": frozenset(),
    "number": frozenset(),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "string": frozenset({"enum", "minLength", "maxLength"}),
}
_ANNOTATIONS = frozenset({"type", "title", "description"})
# Far below what llguidance refuses for its size; repeated parts multiply.
_MAX_PARTS = 1_000
_MAX_BOUND = 10**9


class _NotPlain(Exception):
    """The schema, or a part of it, is none of those that are sure to compile."""


def is_sure_to_compile(schema: JsonValue) -> bool:
    """Whether a schema that satisfies the meta-schema compiles for sure; false says nothing."""
    try:
        return _num_parts(schema) <= _MAX_PARTS
    except _NotPlain:
        return False


def _num_parts(schema: JsonValue) -> int:
    """How many parts a schema has, with its repetitions."""
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        raise _NotPlain
    kind = schema["type"]
    if kind not in _KEYWORDS or not schema.keys() <= _ANNOTATIONS | _KEYWORDS[kind]:
        raise _NotPlain
    match kind:
        case "array":
            return 1 + _bound(schema, "minItems", "maxItems") * _num_parts(schema.get("items"))
        case "object":
            return 1 + sum(map(_num_parts, _properties(schema)))
        case "string":
            return _num_texts(schema) or _bound(schema, "minLength", "maxLength")
        case "integer":
            _bound(schema, "minimum", "maximum")
            return 1
        case _:
            return 1


def _bound(schema: dict[str, JsonValue], least: str, most: str) -> int:
    """The greater one of two bounds, at least 1."""
    bounds = [bound for key in (least, most) if (bound := schema.get(key)) is not None]
    whole = [bound for bound in bounds if type(bound) is int and abs(bound) <= _MAX_BOUND]
    if len(whole) < len(bounds) or whole != sorted(whole):
        raise _NotPlain
    return max([1, *whole])


def _num_texts(schema: dict[str, JsonValue]) -> int:
    """How many texts are allowed; 0 when they are not named."""
    if "enum" not in schema:
        return 0
    texts = schema["enum"]
    is_plain = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not is_plain or not texts or schema.keys() & {"minLength", "maxLength"}:
        raise _NotPlain
    assert isinstance(texts, list)
    return len(texts)


def _properties(schema: dict[str, JsonValue]) -> list[JsonValue]:
    properties, required = schema.get("properties"), schema.get("required", [])
    is_closed = schema.get("additionalProperties", False) is False
    if not is_closed or not isinstance(properties, dict) or not isinstance(required, list):
        raise _NotPlain
    if any(name not in properties for name in required if isinstance(name, str)):
        raise _NotPlain
    return [*properties.values()]
