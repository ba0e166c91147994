"""One schema in the words of the newest draft, without what asks for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.grammars.lowering.positions import ANNOTATIONS, KNOWN
from flowforge.grammars.lowering.values import with_integers
from flowforge.grammars.schema_dialect import to_reference

if TYPE_CHECKING:
    from flowforge.grammars.lowering.references import References
    from flowforge.grammars.schema_dialect import JsonValue

_VALUES = ("const", "enum")
_COUNTS = frozenset(
    f"{end}{of}" for end in ("min", "max") for of in ("Contains", "Items", "Length", "Properties")
)
_AROUND_REFERENCE = frozenset({"$ref", "$schema", "$id", "id", "$defs", "definitions"})


def normal_form(
    schema: dict[str, JsonValue], references: References, *, ignores_siblings: bool
) -> dict[str, JsonValue]:
    """Rewrite one schema, not those inside it. Exact.

    ignores_siblings: whether the schema's draft ignores what stands beside `$ref`.
    """
    if ignores_siblings and "$ref" in schema:
        schema = {key: value for key, value in schema.items() if key in _AROUND_REFERENCE}
    normal: dict[str, JsonValue] = {}
    for keyword, value in schema.items():
        if keyword not in KNOWN or keyword in ANNOTATIONS:
            continue
        if keyword in _VALUES or keyword in _COUNTS:
            normal[keyword] = with_integers(value)
        elif keyword == "dependencies" and isinstance(value, dict):
            _split_dependencies(value, normal)
        elif keyword in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str):
            found = references.target(value)
            is_static = keyword == "$ref" or references.is_static(keyword, value)
            if found is not None and is_static and "$ref" not in normal:
                normal["$ref"] = to_reference(found[0])
            else:
                normal[keyword] = value
        else:
            normal[keyword] = value
    _use_numeric_bounds(normal)
    return normal


def _split_dependencies(value: dict[str, JsonValue], normal: dict[str, JsonValue]) -> None:
    names: dict[str, JsonValue] = {}
    schemas: dict[str, JsonValue] = {}
    for name, inner in value.items():
        (names if isinstance(inner, list) else schemas)[name] = inner
    if names:
        normal["dependentRequired"] = names
    if schemas:
        normal["dependentSchemas"] = schemas


def _use_numeric_bounds(schema: dict[str, JsonValue]) -> None:
    """Draft 4 says by a boolean whether a bound is exclusive."""
    for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        value = schema.get(keyword)
        if isinstance(value, bool):
            del schema[keyword]
            if value and bound in schema:
                schema[keyword] = schema.pop(bound)
