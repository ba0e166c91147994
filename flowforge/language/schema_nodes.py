"""JSON Schemas written in YAML: their values, and slips in the words of types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flowforge.language.foreign_words import help_for_type
from flowforge.language.json_values import kind_of_value
from flowforge.language.schemas import SchemaProblem
from flowforge.language.types import (
    STRING,
    Array,
    Object,
    Type,
    may_be,
    members_of,
    type_of_value,
)
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, SequenceNode, value_of_node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.language.program import JsonValue
    from flowforge.language.yaml_nodes import Node

SCHEMA_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_TEXT_VALUES = ("enum", "const", "default", "examples")
MAPS_OF_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties")
SCHEMAS = ("items", "additionalProperties", "contains", "not")
LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")


def schema_of_node(node: MappingNode) -> dict[str, JsonValue]:
    """The schema; where it says `type: string`, numbers among its values keep their characters."""
    kind = node.entry("type")
    is_text = kind is not None and value_of_node(kind.value) == "string"
    return {entry.key: _part_of_schema(entry.key, entry.value, is_text) for entry in node.entries}


def typed_value(node: Node, type_: Type) -> JsonValue:
    """A node's value where the type is known: where a text is wanted, 010 is the text 010."""
    if isinstance(node, ScalarNode):
        value = node.value
        wants_text = may_be(type_, STRING) and not may_be(type_of_value(value), type_)
        return node.text if wants_text and value is not None else value
    members = members_of(type_)
    if isinstance(node, SequenceNode):
        arrays = [member for member in members if isinstance(member, Array)]
        if len(arrays) == 1:
            return [typed_value(item, arrays[0].item) for item in node.items]
    if isinstance(node, MappingNode):
        objects = [member for member in members if isinstance(member, Object)]
        if len(objects) == 1:
            return {
                entry.key: _typed_field(entry.key, entry.value, objects[0])
                for entry in node.entries
            }
    return value_of_node(node)


def problems_in_schema(schema: JsonValue, pointer: str = "") -> list[SchemaProblem]:
    """Slips of authors with a better help than JSON Schema's own rules have, at any depth.

    Words that are no type, texts and nulls where a schema stands, forms of earlier drafts.
    """
    if isinstance(schema, str | int | float | None) and not isinstance(schema, bool):
        name = pointer.rpartition("/")[2]
        message = f"{name!r} is {_shown(schema)}, expected a JSON Schema"
        word = schema if schema in SCHEMA_TYPES else "string"
        return [SchemaProblem(pointer, message, "error", f"write {name}: {{ type: {word} }}")]
    if not isinstance(schema, dict):
        return []
    problems = [*_problems_of_type(schema, pointer), *_problems_of_draft(schema, pointer)]
    for key, value in schema.items():
        for path, part in _parts(key, value):
            problems += problems_in_schema(part, pointer + path)
    return problems


def _typed_field(name: str, node: Node, object_: Object) -> JsonValue:
    field = object_.field(name)
    return value_of_node(node) if field is None else typed_value(node, field.type)


def _part_of_schema(key: str, node: Node, is_text: bool) -> JsonValue:
    """The value of one key of a schema; is_text: the schema's type is string."""
    if key in _TEXT_VALUES and is_text:
        return typed_value(node, Array(STRING) if isinstance(node, SequenceNode) else STRING)
    if isinstance(node, MappingNode) and key not in _TEXT_VALUES:
        return schema_of_node(node)
    if isinstance(node, SequenceNode) and key in LISTS_OF_SCHEMAS:
        return [
            schema_of_node(item) if isinstance(item, MappingNode) else value_of_node(item)
            for item in node.items
        ]
    return value_of_node(node)


def _parts(key: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """The schemas under one keyword, with the path to each below the schema."""
    if key in SCHEMAS:
        yield f"/{key}", value
    elif key in MAPS_OF_SCHEMAS and isinstance(value, dict):
        for name, part in value.items():
            yield f"/{key}/{name.replace('~', '~0').replace('/', '~1')}", part
    elif key in LISTS_OF_SCHEMAS and isinstance(value, list):
        for idx, part in enumerate(value):
            yield f"/{key}/{idx}", part


def _problems_of_type(schema: Mapping[str, JsonValue], pointer: str) -> Iterator[SchemaProblem]:
    kind = schema.get("type", [])
    for idx, word in enumerate(kind if isinstance(kind, list) else [kind]):
        place = f"{pointer}/type/{idx}" if isinstance(kind, list) else f"{pointer}/type"
        if word is None:
            message = "'type' names null itself, expected the word for it"
            help = 'write it as a text: type: ["string", "null"]'
            yield SchemaProblem(place, message, "error", help)
        elif not isinstance(word, str):
            message = f"'type' is {_shown(word)}, expected a word or a list of words"
            yield SchemaProblem(place, message, "error", f"types: {', '.join(SCHEMA_TYPES)}")
        elif word not in SCHEMA_TYPES:
            meant = help_for_type(word, SCHEMA_TYPES, f"types: {', '.join(SCHEMA_TYPES)}")
            yield SchemaProblem(place, f"unknown type {word!r}", "error", meant)


def _problems_of_draft(schema: Mapping[str, JsonValue], pointer: str) -> Iterator[SchemaProblem]:
    """Keywords in a form that they had in earlier drafts, or have elsewhere."""
    required = schema.get("required", [])
    if not isinstance(required, list):
        message = f"'required' is {kind_of_value(required)}, expected a list of names"
        help = "it stands beside 'properties' and lists those that are: required: [a, b]"
        yield SchemaProblem(f"{pointer}/required", message, "error", help)
    if isinstance(schema.get("items"), list):
        message = "'items' is a list, expected the JSON Schema of every item"
        help = "for a schema of each place write prefixItems: […]"
        yield SchemaProblem(f"{pointer}/items", message, "error", help)
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        message = f"'properties' is {kind_of_value(properties)}, expected JSON Schemas by name"
        help = "write properties: { name: { type: string } }"
        yield SchemaProblem(f"{pointer}/properties", message, "error", help)


def _shown(value: JsonValue) -> str:
    return f"the text {value!r}" if isinstance(value, str) else json.dumps(value)
