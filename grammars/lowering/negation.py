"""The schema for everything that another schema does not allow, where it can be said exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from flowforge.grammars.lowering.positions import ANNOTATIONS
from flowforge.grammars.lowering.values import TYPES, all_of, any_of, type_of

if TYPE_CHECKING:
    from flowforge.grammars.lowering.references import References
    from flowforge.grammars.schema_dialect import JsonValue

_MAX_PARTS = 500
_MAX_DEPTH = 40
_MAX_TEXT_CHARS = 2_000
_MAX_TEXT_LEN = 200
_SAYS_NOTHING = ANNOTATIONS | {"$defs", "definitions", "$schema"}
# For numbers and lengths: the type it is about, and what holds exactly where it does not.
_BOUNDS = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
}


class _CannotBeNegated(Exception):
    pass


def negate(schema: JsonValue, references: References) -> JsonValue | None:
    """The complement of a schema; None where it cannot be said in keywords that a mask enforces."""
    try:
        return _Negation(references).of(schema)
    except _CannotBeNegated:
        return None


def other_texts(texts: list[str]) -> str | None:
    """A regex for all texts but these; None where it would be too large."""
    if sum(map(len, texts)) > _MAX_TEXT_CHARS or max(map(len, texts)) > _MAX_TEXT_LEN:
        return None
    return f"^(?s:{_others(sorted(set(texts)), '')})$"


class _Negation:
    """One negation. Its parts are counted: references can multiply them without end."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._num_parts = 0
        self._depth = 0

    def of(self, schema: JsonValue) -> JsonValue:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS or self._depth > _MAX_DEPTH:
            raise _CannotBeNegated
        if not isinstance(schema, dict):
            return schema is False
        parts: list[JsonValue] = []
        self._depth += 1
        for keyword, value in schema.items():
            if keyword not in _SAYS_NOTHING:
                parts += self._of_keyword(keyword, value)
        self._depth -= 1
        return any_of(parts)

    def _of_keyword(self, keyword: str, value: JsonValue) -> list[JsonValue]:
        match keyword, value:
            case "const", _:
                return _not_one_of([value])
            case "enum", list():
                return _not_one_of(value)
            case "type", str() | list():
                return _not_of_type(value)
            case "required", list():
                return [{"type": "object", "properties": {str(name): False}} for name in value]
            case "properties", dict():
                return [self._of_property(name, inner) for name, inner in value.items()]
            case "not", _:
                return [value]
            case "allOf", list():
                return [self.of(inner) for inner in value]
            case "anyOf", list():
                return [all_of([self.of(inner) for inner in value])]
            case "$ref", str() if (found := self._references.target(value)) is not None:
                return [self.of(found[1])]
            case "additionalProperties" | "items", True | {}:
                return []
            case _, int() | float() if keyword in _BOUNDS and not isinstance(value, bool):
                kind, opposite, shift = _BOUNDS[keyword]
                is_always = shift == -1 and value <= 0
                return [] if is_always else [{"type": kind, opposite: value + shift}]
            case _:
                raise _CannotBeNegated

    def _of_property(self, name: str, schema: JsonValue) -> JsonValue:
        inner = self.of(schema)
        if inner is False:
            return False
        return {"type": "object", "properties": {name: inner}, "required": [name]}


def _not_of_type(kinds: str | list[JsonValue]) -> list[JsonValue]:
    names = {kinds} if isinstance(kinds, str) else set(map(str, kinds))
    if "integer" in names and "number" not in names:
        raise _CannotBeNegated
    others: list[JsonValue] = [kind for kind in TYPES if kind not in names]
    return [{"type": others}] if others else []


def _not_one_of(values: list[JsonValue]) -> list[JsonValue]:
    by_type: dict[str, list[JsonValue]] = {}
    for value in values:
        by_type.setdefault(type_of(value), []).append(value)
    if by_type.keys() & {"array", "object"}:
        raise _CannotBeNegated
    parts: list[JsonValue] = []
    parts.append({"type": [kind for kind in TYPES if kind not in by_type]})
    if "string" in by_type:
        pattern = other_texts([str(value) for value in by_type["string"]])
        if pattern is None:
            raise _CannotBeNegated
        parts.append({"type": "string", "pattern": pattern})
    if "boolean" in by_type:
        left: list[JsonValue] = [one for one in (True, False) if one not in by_type["boolean"]]
        parts.append({"enum": left} if left else False)
    if "number" in by_type:
        parts += _gaps(sorted(cast("set[int | float]", set(by_type["number"]))))
    return parts


def _gaps(numbers: list[int | float]) -> list[JsonValue]:
    lows: list[int | float | None] = [None, *numbers]
    highs: list[int | float | None] = [*numbers, None]
    gaps: list[JsonValue] = []
    for low, high in zip(lows, highs, strict=True):
        gap: dict[str, JsonValue] = {"type": "number"}
        if low is not None:
            gap["exclusiveMinimum"] = low
        if high is not None:
            gap["exclusiveMaximum"] = high
        gaps.append(gap)
    return gaps


def _others(texts: list[str], prefix: str) -> str:
    """What may follow `prefix`, one of the beginnings of these texts, so that none of them is met.

    texts: those that begin with the prefix, sorted.
    """
    options = [] if prefix in texts else [""]
    by_next: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > len(prefix):
            by_next.setdefault(text[len(prefix)], []).append(text)
    others = "".join(map(_in_class, by_next))
    options.append(f"[^{others}].*" if by_next else ".+")
    options += [_in_class(char) + _others(rest, prefix + char) for char, rest in by_next.items()]
    return f"(?:{'|'.join(options)})"


def _in_class(char: str) -> str:
    """A character as a regex, inside a class and outside."""
    return f"\\x{{{ord(char):X}}}"
