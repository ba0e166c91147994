"""Where schemas stand inside a schema, and what its keywords are, by how a mask can hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.grammars.schema_dialect import JsonValue

    Path = tuple[str | int, ...]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ONE_SCHEMA = _words(
    """additionalItems additionalProperties contains contentSchema else if items not propertyNames
    then unevaluatedItems unevaluatedProperties
    """
)
SCHEMA_LISTS = _words("allOf anyOf items oneOf prefixItems")
SCHEMA_MAPS = _words("$defs definitions dependencies dependentSchemas patternProperties properties")
# Their schemas say something about the same value as the schema they stand in.
IN_PLACE = _words("allOf anyOf dependencies dependentSchemas else if not oneOf then")

# Keywords that the mask enforces as they stand (llguidance 1.9, strict).
ENFORCED = _words(
    """$anchor $id $ref $schema additionalItems additionalProperties allOf anyOf const enum
    exclusiveMaximum exclusiveMinimum format id items maxItems maxLength maximum minItems minLength
    minimum multipleOf pattern patternProperties prefixItems properties required type $defs
    definitions
    """
)
# Keywords that the mask enforces where they can be said in other words, exactly.
REWRITTEN = _words(
    """$dynamicAnchor $dynamicRef $recursiveAnchor $recursiveRef contains dependencies
    dependentRequired dependentSchemas else if maxContains maxProperties minContains minProperties
    not oneOf propertyNames then unevaluatedItems unevaluatedProperties uniqueItems
    """
)
# Keywords that ask for nothing.
ANNOTATIONS = _words(
    """$comment $vocabulary contentEncoding contentMediaType contentSchema default deprecated
    description examples readOnly title writeOnly
    """
)
KNOWN = ENFORCED | REWRITTEN | ANNOTATIONS


def inner_schemas(keyword: str, value: JsonValue) -> Iterator[tuple[Path, JsonValue]]:
    """The schemas that stand directly under one keyword, each with its path from the schema."""
    if keyword in SCHEMA_MAPS and isinstance(value, dict):
        for name, inner in value.items():
            # An array under `dependencies` names properties.
            if isinstance(inner, dict | bool):
                yield (keyword, name), inner
    elif keyword in SCHEMA_LISTS and isinstance(value, list):
        for idx, inner in enumerate(value):
            yield (keyword, idx), inner
    elif keyword in ONE_SCHEMA:
        yield (keyword,), value
