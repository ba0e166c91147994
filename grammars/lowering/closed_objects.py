"""Objects that take no properties but those they name, where the schema is silent about others.

A schema that is put together from parts is closed as a whole: each part alone would refuse what the
others name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.grammars.lowering.names import property_names
from flowforge.grammars.lowering.positions import ANNOTATIONS, IN_PLACE, KNOWN, inner_schemas

if TYPE_CHECKING:
    from flowforge.grammars.lowering.positions import Path
    from flowforge.grammars.lowering.references import References
    from flowforge.grammars.schema_dialect import JsonValue

_OTHERS = frozenset({"additionalProperties", "unevaluatedProperties"})
_BESIDE = frozenset({"$schema", "$id", "id", "$defs", "definitions", "$anchor", "$dynamicAnchor"})
# With one of these beside them, the branches of anyOf and oneOf are parts of one object.
_OF_OBJECTS = (
    (IN_PLACE - {"anyOf", "oneOf"})
    | _OTHERS
    | {"$ref", "$dynamicRef", "$recursiveRef", "dependentRequired", "maxProperties"}
    | {"minProperties", "patternProperties", "properties", "propertyNames", "required"}
)


def has_own_branches(schema: dict[str, JsonValue]) -> bool:
    """Whether each branch of its anyOf or oneOf is an object of its own."""
    return _OF_OBJECTS.isdisjoint(schema) and not {"anyOf", "oneOf"} <= schema.keys()


def closes_inside(schema: dict[str, JsonValue], keyword: str, *, closes: bool) -> bool:
    """Whether the schemas under a keyword are closed by themselves. closes: the schema's own."""
    if keyword in ("anyOf", "oneOf"):
        return closes and has_own_branches(schema)
    return keyword not in IN_PLACE and keyword not in ("contains", "propertyNames")


def close_object(schema: dict[str, JsonValue], references: References) -> dict[str, JsonValue]:
    """Close one schema, not those inside it; the same schema where there is nothing to close."""
    meant = schema.keys() - _BESIDE
    if meant == {"$ref"} or not _OTHERS.isdisjoint(meant):
        return schema
    names = property_names(schema, references)
    is_whole = meant.isdisjoint(IN_PLACE | {"$ref"})
    if is_whole and "properties" not in schema:
        return schema
    is_clear = names.is_known and not names.says_others and not names.patterns
    if not is_whole and (has_own_branches(schema) or not is_clear or not names.names):
        return schema
    own = schema.get("properties")
    properties: dict[str, JsonValue] = dict(own) if isinstance(own, dict) else {}
    for name in names.names:
        properties.setdefault(name, True)
    return {**schema, "properties": properties, "additionalProperties": False}


def open_targets(schema: JsonValue, references: References) -> frozenset[Path]:
    """Where references lead that are parts of an object: there nothing is closed."""
    found: set[Path] = set()
    _collect(schema, (), True, references, found, set())
    return frozenset(found)


def _collect(
    schema: JsonValue,
    path: Path,
    closes: bool,
    references: References,
    found: set[Path],
    seen: set[tuple[Path, bool]],
) -> None:
    if not isinstance(schema, dict) or (path, closes) in seen:
        return
    seen.add((path, closes))
    meant = {key: value for key, value in schema.items() if key in KNOWN - ANNOTATIONS - _BESIDE}
    target = references.target(str(schema["$ref"])) if "$ref" in schema else None
    if target is not None and not (closes and meant.keys() == {"$ref"}):
        found.add(target[0])
        _collect(target[1], target[0], False, references, found, seen)
    for keyword, value in schema.items():
        inside = closes_inside(meant, keyword, closes=closes)
        for inner_path, inner in inner_schemas(keyword, value):
            _collect(inner, (*path, *inner_path), inside, references, found, seen)
