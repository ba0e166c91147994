"""The types of values in a workflow: JSON's, joined by unions, with known fields of objects.

`ANY` is the type of what is unknown, and of what is already reported as broken: everything is
allowed on it, so one mistake is reported once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowforge.language.program import JsonValue

ScalarKind = Literal["null", "boolean", "integer", "number", "string"]
MAX_CHOICES = 100
MAX_LITERAL_CHARS = 60
TYPE_WORDS = ("string", "number", "integer", "boolean", "null", "array", "object", "any")


@dataclass(frozen=True, slots=True)
class AnyType:
    """Nothing is known of the value."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value without parts."""

    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class Choice:
    """A text that is one of a few known ones."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """A list whose items all have one type."""

    item: Type


@dataclass(frozen=True, slots=True)
class Field:
    """A known field of an object; one that is not required may be absent, which reads as null."""

    name: str
    type: Type
    is_required: bool


@dataclass(frozen=True, slots=True)
class Object:
    """An object. extra: the type of fields beyond the known ones; None when there are no others."""

    fields: tuple[Field, ...]
    extra: Type | None

    def field(self, name: str) -> Field | None:
        """The known field of this name."""
        return next((field for field in self.fields if field.name == name), None)


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types, none of them a union or any; made by `join_types`."""

    members: tuple[Type, ...]


Type: TypeAlias = AnyType | Scalar | Choice | Array | Object | Union

ANY = AnyType()
NULL = Scalar("null")
BOOLEAN = Scalar("boolean")
INTEGER = Scalar("integer")
NUMBER = Scalar("number")
STRING = Scalar("string")
_WORD_TO_TYPE: dict[str, Type] = {
    "string": STRING,
    "number": NUMBER,
    "integer": INTEGER,
    "boolean": BOOLEAN,
    "null": NULL,
    "array": Array(ANY),
    "object": Object((), ANY),
    "any": ANY,
}


def type_of_word(word: str) -> Type | None:
    """The type an author means by one word."""
    return _WORD_TO_TYPE.get(word)


def join_types(types: Iterable[Type]) -> Type:
    """The type of a value that has one of these types; integers are numbers."""
    members: list[Type] = []
    for type_ in types:
        for member in type_.members if isinstance(type_, Union) else (type_,):
            if isinstance(member, AnyType):
                return ANY
            if member not in members:
                members.append(member)
    if NUMBER in members and INTEGER in members:
        members.remove(INTEGER)
    members = _with_one_choice(members)
    if not members:
        return ANY
    return members[0] if len(members) == 1 else Union(tuple(members))


def _with_one_choice(members: list[Type]) -> list[Type]:
    """The same with all choices in one; among strings they say nothing more."""
    choices = [member for member in members if isinstance(member, Choice)]
    values = tuple(dict.fromkeys(value for choice in choices for value in choice.values))
    if not choices or (len(choices) == 1 and STRING not in members):
        return members
    rest: list[Type] = [member for member in members if not isinstance(member, Choice)]
    is_known = STRING not in members and len(values) <= MAX_CHOICES
    if is_known:
        return [Choice(values), *rest]
    return rest if STRING in rest else [STRING, *rest]


def members_of(type_: Type) -> tuple[Type, ...]:
    """The types a value of this type may have, one by one."""
    return type_.members if isinstance(type_, Union) else (type_,)


def may_be_null(type_: Type) -> bool:
    """Whether null is known to be among the values; false for `any`."""
    return NULL in members_of(type_)


def without_null(type_: Type) -> Type:
    """The type of the value once null is taken care of."""
    return join_types(member for member in members_of(type_) if member != NULL)


def may_be(type_: Type, wanted: Type) -> bool:
    """Whether some value has both types, judged by the outermost shape."""
    return any(
        _shapes_meet(one, other) for one in members_of(type_) for other in members_of(wanted)
    )


def _shapes_meet(one: Type, other: Type) -> bool:
    if isinstance(one, AnyType) or isinstance(other, AnyType):
        return True
    if isinstance(one, Choice) and isinstance(other, Choice):
        return not set(one.values).isdisjoint(other.values)
    if isinstance(one, Choice) or isinstance(other, Choice):
        return STRING in (one, other)
    if isinstance(one, Scalar) and isinstance(other, Scalar):
        numeric = ("integer", "number")
        return one.kind == other.kind or (one.kind in numeric and other.kind in numeric)
    return type(one) is type(other)


def type_of_schema(schema: JsonValue, depth: int = 0) -> Type:
    """What a JSON Schema says of a value's shape; `any` where it says nothing we understand."""
    if not isinstance(schema, dict) or depth > 32:
        return ANY
    if "enum" in schema and isinstance(schema["enum"], list):
        return join_types(type_of_literal(value) for value in schema["enum"])
    if "const" in schema:
        return type_of_literal(schema["const"])
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word)
        if isinstance(choices, list):
            return join_types(type_of_schema(choice, depth + 1) for choice in choices)
    kind = schema.get("type")
    if isinstance(kind, list):
        return join_types(_type_of_kind(one, schema, depth) for one in kind)
    return _type_of_kind(kind, schema, depth)


def type_of_value(value: JsonValue) -> Type:
    """The narrowest type that is stated for a value."""
    match value:
        case None:
            return NULL
        case bool():
            return BOOLEAN
        case int():
            return INTEGER
        case float():
            return NUMBER
        case str():
            return STRING
        case list():
            return Array(join_types(type_of_value(item) for item in value))
        case dict():
            fields = (Field(name, type_of_value(item), True) for name, item in value.items())
            return Object(tuple(fields), None)


def type_of_literal(value: JsonValue) -> Type:
    """The type of a value that is written out: a short text is known by its characters."""
    if isinstance(value, str) and len(value) <= MAX_LITERAL_CHARS:
        return Choice((value,))
    return type_of_value(value)


def display_type(type_: Type) -> str:
    """The type as an author would write it: array<string>, {name: string}, string | null."""
    match type_:
        case AnyType():
            return "any"
        case Scalar():
            return type_.kind
        case Choice():
            return " | ".join(json.dumps(value, ensure_ascii=False) for value in type_.values)
        case Array():
            is_open = isinstance(type_.item, AnyType)
            return "array" if is_open else f"array<{display_type(type_.item)}>"
        case Object(fields=()):
            return "object"
        case Object():
            return "{" + ", ".join(_display_field(field) for field in type_.fields) + "}"
        case Union():
            # What may be absent is said last.
            members = sorted(type_.members, key=lambda member: member == NULL)
            return " | ".join(display_type(member) for member in members)


def _display_field(field: Field) -> str:
    return f"{field.name}{'' if field.is_required else '?'}: {display_type(field.type)}"


def _type_of_kind(kind: JsonValue, schema: Mapping[str, JsonValue], depth: int) -> Type:
    if kind == "array":
        return Array(type_of_schema(schema.get("items"), depth + 1))
    if kind == "object" or (kind is None and "properties" in schema):
        return _object_of_schema(schema, depth)
    return _WORD_TO_TYPE.get(kind, ANY) if isinstance(kind, str) else ANY


def _object_of_schema(schema: Mapping[str, JsonValue], depth: int) -> Type:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return Object((), type_of_schema(schema.get("additionalProperties"), depth + 1))
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    fields = tuple(
        Field(name, type_of_schema(part, depth + 1), name in names)
        for name, part in properties.items()
    )
    # A schema that lists its properties and says nothing of others names all the author knows of:
    # another name is far more often a slip than a wish.
    others = schema.get("additionalProperties", False)
    return Object(fields, None if others is False else type_of_schema(others, depth + 1))
