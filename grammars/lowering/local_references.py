"""References by name, made references by place: `$id` and `$anchor` inside one document.

Each `$ref` that leads somewhere in the document, however it is written, becomes '#/…', and parts
lose the `$id` by which only such references know them. Nothing is fetched: a reference that leads
out of the document stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.grammars.lowering.positions import SCHEMA_MAPS, inner_schemas
from flowforge.grammars.schema_dialect import draft_of, to_plain, to_reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from referencing import Specification
    from referencing._core import Resolver

    from flowforge.grammars.lowering.positions import Path
    from flowforge.grammars.schema_dialect import JsonValue

# What they mean depends on the way by which they are come to.
_DYNAMIC = frozenset({"$dynamicRef", "$recursiveRef"})
_IDS = ("$id", "id")


def with_local_references(schema: JsonValue) -> JsonValue:
    """The schema with its references by place; itself where they are that already."""
    if not isinstance(schema, dict) or not _needs_places(schema):
        return schema
    from referencing import Registry
    from referencing.jsonschema import specification_with

    plain = to_plain(schema)
    dialect = str(draft_of(plain).META_SCHEMA.get("$schema", ""))
    specification: Specification[JsonValue] = specification_with(dialect)
    root = specification.create_resource(plain)
    registry: Registry[JsonValue] = Registry()
    rewriting = _Rewriting(dict(_places(plain, ())), specification)
    return rewriting.rewritten(plain, registry.resolver_with_root(root))


class _Rewriting:
    """paths: of every object of the document, by its identity."""

    def __init__(self, paths: dict[int, Path], specification: Specification[JsonValue]) -> None:
        self._paths = paths
        self._specification = specification

    def rewritten(self, schema: JsonValue, resolver: Resolver[JsonValue]) -> JsonValue:
        """A part of the document. resolver: of what stands in it."""
        if not isinstance(schema, dict):
            return schema
        told = dict(schema)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            told["$ref"] = self._place(reference, resolver)
        for keyword, value in schema.items():
            inner = {
                path: self._inner(one, resolver) for path, one in inner_schemas(keyword, value)
            }
            if isinstance(value, dict) and keyword in SCHEMA_MAPS:
                told[keyword] = {key: inner.get((keyword, key), one) for key, one in value.items()}
            elif isinstance(value, list) and inner:
                told[keyword] = [inner[keyword, idx] for idx in range(len(value))]
            elif inner:
                told[keyword] = inner[keyword,]
        return told

    def _inner(self, schema: JsonValue, resolver: Resolver[JsonValue]) -> JsonValue:
        if not isinstance(schema, dict):
            return schema
        resolver = resolver.in_subresource(self._specification.create_resource(schema))
        told = self.rewritten(schema, resolver)
        assert isinstance(told, dict)
        return {key: value for key, value in told.items() if key not in _IDS}

    def _place(self, reference: str, resolver: Resolver[JsonValue]) -> str:
        from referencing.exceptions import Unresolvable

        try:
            target = resolver.lookup(reference).contents
        except Unresolvable:
            return reference
        path = self._paths.get(id(target))
        return reference if path is None else to_reference(path)


def _places(value: JsonValue, path: Path) -> Iterator[tuple[int, Path]]:
    """Every object inside a value, with where it is."""
    if isinstance(value, list):
        for idx, item in enumerate(value):
            yield from _places(item, (*path, idx))
    elif isinstance(value, dict):
        yield id(value), path
        for key, inner in value.items():
            yield from _places(inner, (*path, key))


def _needs_places(schema: dict[str, JsonValue]) -> bool:
    """Whether a part is known by a name, or may be, and none by the way that leads to it."""
    parts = [*_parts(schema)]
    if any(not _DYNAMIC.isdisjoint(part) or "$schema" in part for part in parts[1:]):
        return False
    if not _DYNAMIC.isdisjoint(schema):
        return False
    has_ids = any(isinstance(part.get(key), str) for part in parts[1:] for key in _IDS)
    references = [part["$ref"] for part in parts if isinstance(part.get("$ref"), str)]
    return has_ids or any(not str(one).startswith("#") for one in references)


def _parts(schema: JsonValue) -> Iterator[dict[str, JsonValue]]:
    """The schema and all inside it, it first."""
    if isinstance(schema, dict):
        yield schema
        for keyword, value in schema.items():
            for _, inner in inner_schemas(keyword, value):
                yield from _parts(inner)
