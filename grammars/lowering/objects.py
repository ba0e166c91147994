"""Keywords of objects in other words: dependencies, names, counts, and what is left over."""

from __future__ import annotations

import re
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

from flowforge.grammars.lowering.names import property_names
from flowforge.grammars.lowering.positions import IN_PLACE
from flowforge.grammars.lowering.values import all_of, any_of, listed_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.grammars.lowering.positions import Path
    from flowforge.grammars.lowering.walk import SchemaWalk
    from flowforge.grammars.schema_dialect import JsonValue

    Schema = dict[str, JsonValue]

_SINGLE_NAME = re.compile(r"\^([\w -]+)\$")
_MAX_DEPENDENTS = 6
_MAX_CHOICES = 64
_ONE_OF = frozenset({"anyOf", "oneOf"})
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


def lower_object_keywords(
    walk: SchemaWalk, schema: Schema, lowered: Schema, path: Path
) -> Iterator[JsonValue]:
    """What must hold besides `lowered`, which it may change."""
    _name_single_patterns(lowered)
    yield from _dependents(walk, schema, path)
    if "unevaluatedProperties" in schema:
        yield from _unevaluated(walk, schema, lowered, path)
    if "propertyNames" in schema:
        yield from _names(walk, schema, lowered, path)
    for keyword, limit in (("minProperties", _at_least), ("maxProperties", _at_most)):
        count = schema.get(keyword)
        if isinstance(count, int):
            choices = limit(lowered, count)
            is_whole = _is_clear(schema)
            if choices is not None and (is_whole or choices == [True]):
                yield any_of(choices)
            elif is_whole and not lowered.keys() & {"properties", "patternProperties"}:
                lowered[keyword] = count
            else:
                walk.leave_out(path, keyword, "there are too many ways to choose the properties")


def _name_single_patterns(lowered: Schema) -> None:
    """A pattern of one name is that property: the mask would wait for a second such name."""
    patterns, properties = lowered.get("patternProperties"), lowered.get("properties", {})
    if not isinstance(patterns, dict) or not isinstance(properties, dict):
        return
    single = {
        pattern: found[1] for pattern in patterns if (found := _SINGLE_NAME.fullmatch(pattern))
    }
    if not single:
        return
    named = dict(properties)
    for pattern, name in single.items():
        inner = patterns[pattern]
        named[name] = all_of([named[name], inner]) if name in named else inner
    lowered["properties"] = named
    left = {pattern: inner for pattern, inner in patterns.items() if pattern not in single}
    lowered["patternProperties"] = left
    if not left:
        del lowered["patternProperties"]


def _dependents(walk: SchemaWalk, schema: Schema, path: Path) -> Iterator[JsonValue]:
    required, schemas = schema.get("dependentRequired"), schema.get("dependentSchemas")
    needs: list[tuple[str, str, JsonValue]] = []
    if isinstance(required, dict):
        needs += [
            (name, "dependentRequired", {"required": names}) for name, names in required.items()
        ]
    if isinstance(schemas, dict):
        for name, inner in schemas.items():
            where = (*path, "dependentSchemas", name)
            part = walk.lower(inner, where, closes=False)
            # Named as a property too, so that it comes before those that it makes necessary.
            present: Schema = {"properties": {name: True}, "required": [name]}
            needs.append((name, "dependentSchemas", all_of([present, part])))
    for idx, (name, keyword, need) in enumerate(needs):
        if idx == _MAX_DEPENDENTS:
            walk.leave_out(path, keyword, f"more than {_MAX_DEPENDENTS} properties need others")
            return
        yield any_of([{"properties": {name: False}}, need])


def _names(walk: SchemaWalk, schema: Schema, lowered: Schema, path: Path) -> Iterator[JsonValue]:
    """Hold all names to a schema: those that are named, and the others by a pattern or a list."""
    names = walk.references.resolve(schema["propertyNames"])
    properties = lowered.get("properties", {})
    if names is True or not isinstance(names, dict) or not isinstance(properties, dict):
        if names is False:
            yield {"maxProperties": 0}
        return
    if _refers(names):
        walk.leave_out(path, "propertyNames", "its names are said by reference")
        return
    if lowered.get("additionalProperties") is False and "patternProperties" not in lowered:
        allowed = [name for name in properties if walk.is_valid(name, names)]
        lowered["properties"] = {
            name: inner if name in allowed else False for name, inner in properties.items()
        }
        return
    others = lowered.get("additionalProperties", True)
    listed = listed_values(names)
    if "patternProperties" in lowered or not _is_clear(schema):
        walk.leave_out(path, "propertyNames", "names are spoken of in other places too")
    elif listed is not None:
        texts = [name for name in listed if isinstance(name, str) and walk.is_valid(name, names)]
        lowered["properties"] = {name: properties.get(name, others) for name in texts}
        lowered["additionalProperties"] = False
    elif not properties and (pattern := _pattern_of(names)) is not None:
        lowered["patternProperties"] = {pattern: others}
        lowered["additionalProperties"] = False
    else:
        walk.leave_out(path, "propertyNames", "the names cannot be said by one pattern")


def _refers(schema: JsonValue) -> bool:
    if isinstance(schema, list):
        return any(map(_refers, schema))
    return isinstance(schema, dict) and ("$ref" in schema or any(map(_refers, schema.values())))


def _is_clear(schema: Schema) -> bool:
    """Whether nothing else speaks of the same object."""
    return (IN_PLACE | _REFERENCES).isdisjoint(schema)


def _pattern_of(names: Schema) -> str | None:
    if names.get("type", "string") != "string":
        return None
    meant = names.keys() - {"type"}
    pattern = names.get("pattern")
    if meant == {"pattern"} and isinstance(pattern, str):
        return pattern
    if meant and meant <= {"minLength", "maxLength"}:
        return f"^(?s:.{{{names.get('minLength', 0)},{names.get('maxLength', '')}}})$"
    return None


def _unevaluated(
    walk: SchemaWalk, schema: Schema, lowered: Schema, path: Path
) -> Iterator[JsonValue]:
    others = schema["unevaluatedProperties"]
    if others is True or "additionalProperties" in schema:
        return
    if _is_clear(schema):
        where = (*path, "unevaluatedProperties")
        lowered["additionalProperties"] = walk.lower(others, where)
        return
    rest = {key: value for key, value in schema.items() if key != "unevaluatedProperties"}
    parts = list(_unconditional_parts(walk, rest, path)) if others is False else []
    if not parts:
        reason = "which properties are left over depends on more than can be listed"
        walk.leave_out(path, "unevaluatedProperties", reason)
        return
    yield any_of(parts)


def _unconditional_parts(walk: SchemaWalk, schema: Schema, path: Path) -> Iterator[JsonValue]:
    """For each branch of one anyOf or oneOf, the branch closed with all that holds beside it."""
    keywords = _ONE_OF & schema.keys()
    base = {key: value for key, value in schema.items() if key not in _ONE_OF}
    branches: JsonValue = [True]
    if len(keywords) == 1:
        branches = schema[next(iter(keywords))]
    for branch in branches if isinstance(branches, list) else []:
        names = property_names({"allOf": [base, branch]}, walk.references)
        if names.is_conditional or names.says_others or names.patterns or not names.is_known:
            return
        closed: Schema = {
            "properties": dict.fromkeys(names.names, True),
            "additionalProperties": False,
        }
        yield closed if branch is True else all_of([walk.lower_open(branch, path), closed])


def _at_least(lowered: Schema, count: int) -> list[JsonValue] | None:
    """Which properties must be there, one choice after another; None where that is not known."""
    required = _required(lowered)
    missing = count - len(required)
    if missing <= 0:
        return [True]
    optional = _optional(lowered, required)
    if optional is None or comb(len(optional), missing) > _MAX_CHOICES:
        return None
    return [{"required": list(choice)} for choice in combinations(optional, missing)]


def _at_most(lowered: Schema, count: int) -> list[JsonValue] | None:
    """Which properties must not be there, one choice after another; None where not known."""
    required = _required(lowered)
    optional = _optional(lowered, required)
    if optional is None:
        return None
    surplus = len(required) + len(optional) - count
    if surplus <= 0:
        return [True]
    if comb(len(optional), min(surplus, len(optional))) > _MAX_CHOICES:
        return None
    return [
        {"properties": dict.fromkeys(choice, False)} for choice in combinations(optional, surplus)
    ]


def _required(lowered: Schema) -> list[str]:
    names = lowered.get("required")
    return list(dict.fromkeys(map(str, names))) if isinstance(names, list) else []


def _optional(lowered: Schema, required: list[str]) -> list[str] | None:
    """The properties that may be there, of a closed object."""
    properties = lowered.get("properties", {})
    is_closed = lowered.get("additionalProperties") is False and "patternProperties" not in lowered
    if not is_closed or not isinstance(properties, dict) or not set(required) <= properties.keys():
        return None
    return [
        name for name, inner in properties.items() if inner is not False and name not in required
    ]
