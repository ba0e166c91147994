"""Schemas that no finite value satisfies, because each way through them comes back to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.grammars.lowering.positions import inner_schemas
from flowforge.grammars.lowering.references import References

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.grammars.lowering.positions import Path
    from flowforge.grammars.schema_dialect import JsonValue


def endless_references(schema: JsonValue) -> list[Path]:
    """The paths of the `$ref`s in which a value, once begun, can never end.

    The least fixed point of what can end. Keywords that are not looked at are taken to let it end,
    so what is named is endless for sure.
    """
    references = References(schema)
    written = dict(_references(schema, ()))
    ending: set[str] = set()
    names = list(dict.fromkeys(written.values()))
    num_before = -1
    while len(ending) > num_before:
        num_before = len(ending)
        for name in names:
            if name not in ending and _target_ends(name, references, ending):
                ending.add(name)
        # Definitions are mostly in order, bottom up or top down: so two rounds do.
        names.reverse()
    return [path for path, name in written.items() if name not in ending]


def _references(schema: JsonValue, path: Path) -> Iterator[tuple[Path, str]]:
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword == "$ref" and isinstance(value, str):
            yield (*path, keyword), value
        for inner_path, inner in inner_schemas(keyword, value):
            yield from _references(inner, (*path, *inner_path))


def _target_ends(name: str, references: References, ending: set[str]) -> bool:
    target = references.target(name)
    return target is None or _ends(target[1], ending)


def _ends(schema: JsonValue, ending: set[str]) -> bool:
    if not isinstance(schema, dict) or schema.keys() & {"const", "enum"}:
        return True
    if "$ref" in schema and schema["$ref"] not in ending:
        return False
    if not all(_ends(part, ending) for part in _list(schema, "allOf")):
        return False
    for keyword in ("anyOf", "oneOf"):
        branches = _list(schema, keyword)
        if branches and not any(_ends(branch, ending) for branch in branches):
            return False
    match schema.get("type"):
        case "object":
            return all(_ends(part, ending) for part in _required_parts(schema))
        case "array":
            return all(_ends(part, ending) for part in _first_items(schema))
        case _:
            return True


def _list(schema: dict[str, JsonValue], keyword: str) -> list[JsonValue]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _required_parts(schema: dict[str, JsonValue]) -> list[JsonValue]:
    properties = schema.get("properties")
    named = properties if isinstance(properties, dict) else {}
    return [named[str(name)] for name in _list(schema, "required") if name in named]


def _first_items(schema: dict[str, JsonValue]) -> list[JsonValue]:
    """The schemas of the items that an array must have, as far as they are one schema each."""
    least = schema.get("minItems")
    if not isinstance(least, int) or least < 1:
        return []
    first = [*_list(schema, "prefixItems"), *_list(schema, "items")]
    items = schema.get("items")
    rest = [items] if isinstance(items, dict) and least > len(first) else []
    return [*first[:least], *rest]
