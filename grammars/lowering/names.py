"""The property names that a schema speaks of, with all that it is put together from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge.grammars.lowering.positions import IN_PLACE, inner_schemas

if TYPE_CHECKING:
    from flowforge.grammars.lowering.references import References
    from flowforge.grammars.schema_dialect import JsonValue

_OTHERS = ("additionalProperties", "unevaluatedProperties")


@dataclass(slots=True)
class PropertyNames:
    """names: in the order in which they are named or required. patterns: of patternProperties.

    says_others: whether anything says what holds for other names. is_known: whether every
    reference could be followed. is_shared: whether a name is there more than once.
    is_conditional: whether some of them are named by parts that need not hold.
    """

    names: dict[str, None] = field(default_factory=dict[str, None])
    patterns: dict[str, None] = field(default_factory=dict[str, None])
    says_others: bool = False
    is_known: bool = True
    is_shared: bool = False
    is_conditional: bool = False


def property_names(schema: JsonValue, references: References) -> PropertyNames:
    """What a schema and those in place with it (allOf, anyOf, if, $ref …) name; `not` does not."""
    found = PropertyNames()
    _collect(schema, references, found, set())
    return found


def _collect(
    schema: JsonValue, references: References, found: PropertyNames, seen: set[str]
) -> None:
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword == "properties" and isinstance(value, dict):
            found.is_shared = found.is_shared or not found.names.keys().isdisjoint(value)
            found.names.update(dict.fromkeys(value))
        elif keyword == "required" and isinstance(value, list):
            found.names.update(dict.fromkeys(map(str, value)))
        elif keyword == "patternProperties" and isinstance(value, dict):
            found.patterns.update(dict.fromkeys(value))
        elif keyword in _OTHERS:
            found.says_others = True
        elif keyword in ("$dynamicRef", "$recursiveRef"):
            found.is_known = False
        elif keyword == "$ref" and isinstance(value, str):
            target = references.target(value)
            if target is None:
                found.is_known = False
            elif value not in seen:
                seen.add(value)
                _collect(target[1], references, found, seen)
        elif keyword in IN_PLACE - {"not"}:
            found.is_conditional = found.is_conditional or keyword != "allOf"
            for _, inner in inner_schemas(keyword, value):
                _collect(inner, references, found, seen)
