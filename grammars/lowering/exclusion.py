"""Whether two schemas are sure to allow no common value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.grammars.lowering.values import TYPES, identity, listed_values, type_of

if TYPE_CHECKING:
    from flowforge.grammars.lowering.references import References
    from flowforge.grammars.schema_dialect import JsonValue

    Schema = dict[str, JsonValue]

_MAX_DEPTH = 8
_MAX_STEPS = 20_000


class Exclusion:
    """Looks whether schemas exclude each other, for as long as it has steps left."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._steps_left = _MAX_STEPS

    def between(self, first: JsonValue, second: JsonValue, depth: int = 0) -> bool:
        """Whether no value satisfies both; false where that is not seen."""
        self._steps_left -= 1
        first, second = self._references.resolve(first), self._references.resolve(second)
        if first is False or second is False:
            return True
        is_out = depth > _MAX_DEPTH or self._steps_left < 0
        if is_out or not isinstance(first, dict) or not isinstance(second, dict):
            return False
        if _types_of(first).isdisjoint(_types_of(second)) or _share_no_value(first, second):
            return True
        if self._is_split(first, second, depth) or self._is_split(second, first, depth):
            return True
        are_objects = _types_of(first) == _types_of(second) == {"object"}
        return are_objects and self._disagree_on_property(first, second, depth)

    def _is_split(self, first: Schema, second: Schema, depth: int) -> bool:
        """Whether what `first` is put together from says it."""
        for keyword, is_enough in (("allOf", any), ("anyOf", all), ("oneOf", all)):
            branches = first.get(keyword)
            if isinstance(branches, list) and is_enough(
                self.between(branch, second, depth + 1) for branch in branches
            ):
                return True
        return False

    def _disagree_on_property(self, first: Schema, second: Schema, depth: int) -> bool:
        needed = {*_required(first), *_required(second)}
        return any(
            self.between(_property(first, name), _property(second, name), depth + 1)
            for name in sorted(needed)
        )


def _types_of(schema: Schema) -> set[str]:
    types: set[str] = set(TYPES)
    kinds = schema.get("type")
    if isinstance(kinds, str | list):
        names = [kinds] if isinstance(kinds, str) else kinds
        types &= {"number" if name == "integer" else str(name) for name in names}
    values = listed_values(schema)
    return types if values is None else types & {type_of(value) for value in values}


def _share_no_value(first: Schema, second: Schema) -> bool:
    one, other = listed_values(first), listed_values(second)
    if one is None or other is None:
        return False
    return set(map(identity, one)).isdisjoint(map(identity, other))


def _required(schema: Schema) -> set[str]:
    names = schema.get("required")
    return set(map(str, names)) if isinstance(names, list) else set()


def _property(schema: Schema, name: str) -> JsonValue:
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)
