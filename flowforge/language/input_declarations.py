"""The inputs a workflow declares: a type word, or a JSON Schema with a default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.fields import is_safe_name, mapping_of
from flowforge.language.foreign_words import help_for_type
from flowforge.language.inputs import problem_with_value
from flowforge.language.named_types import report_problems
from flowforge.language.program import Input, Required
from flowforge.language.schema_nodes import problems_in_schema, schema_of_node, typed_value
from flowforge.language.types import (
    ANY,
    Field,
    Object,
    display_type,
    type_of_schema,
)
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, kind_of_node, node_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.named_types import NamedTypes
    from flowforge.language.program import JsonValue
    from flowforge.language.scope import Report
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import Entry

_FORM = "write 'topic: string', or 'topic: { type: string, default: … }'"


def parse_inputs(entry: Entry | None, types: NamedTypes, report: Report) -> dict[str, Input]:
    """The declared inputs; a broken one is reported and has type `any`."""
    mapping = None if entry is None else mapping_of(entry, report, _FORM)
    if mapping is None:
        return {}
    inputs: dict[str, Input] = {}
    for one in mapping.entries:
        is_safe_name(one.key, one.key_span, "input", report)
        type_, schema, default = _declaration(one, types, report)
        location = report.source.location(one.key_span.start)
        inputs[one.key] = Input(one.key, type_, schema, default, location)
    return inputs


def type_of_inputs(inputs: Mapping[str, Input]) -> Object:
    """The type of the name `inputs`."""
    return Object(tuple(Field(name, one.type, True) for name, one in inputs.items()), None)


def _declaration(
    entry: Entry, types: NamedTypes, report: Report
) -> tuple[Type, dict[str, JsonValue], JsonValue | Required]:
    node = entry.value
    if isinstance(node, ScalarNode) and isinstance(node.value, str):
        named = types.of_word(node.value.strip())
        if named is not None:
            return type_of_schema(named), named, Required()
        otherwise = f"types: {', '.join(types.words()[:12])}"
        help = help_for_type(node.value, types.words(), otherwise)
        report.error("WF118", f"unknown type {node.value!r}", node.span, help)
    elif isinstance(node, MappingNode):
        return _schema_declaration(node, types, report)
    else:
        span = entry.key_span if node.span.start == node.span.end else node.span
        message = f"input {entry.key!r} must be a type or a JSON Schema, got {kind_of_node(node)}"
        report.error("WF118", message, span, _FORM)
    return ANY, {}, Required()


def _schema_declaration(
    node: MappingNode, types: NamedTypes, report: Report
) -> tuple[Type, dict[str, JsonValue], JsonValue | Required]:
    schema = schema_of_node(node)
    if schema.get("type") == "any":
        del schema["type"]
    default = node.entry("default")
    schema.pop("default", None)
    word = schema.get("type")
    if isinstance(word, str) and word in types.schemas:
        schema = {**types.schemas[word], **{k: v for k, v in schema.items() if k != "type"}}
    schema, problems = types.written_out(schema)
    report_problems(problems, node, "WF118", report)
    if problems or _is_broken(schema, node, report):
        return ANY, {}, Required()
    type_ = type_of_schema(schema)
    if default is None:
        return type_, schema, Required()
    value = typed_value(default.value, type_)
    problem = problem_with_value(schema, value)
    if problem is not None:
        span = default.value.span
        span = default.key_span if span.start == span.end else span
        message = f"the default does not fit {display_type(type_)}: {problem}"
        help = "change the default, or the type; without a default the input must be given"
        report.error("WF117", message, span, help)
    return type_, schema, value


def _is_broken(schema: dict[str, JsonValue], node: MappingNode, report: Report) -> bool:
    problems = problems_in_schema(schema)
    report_problems(problems, node, "WF118", report)
    if problems or schema.keys() <= {"type", "description"}:
        return bool(problems)
    import jsonschema

    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        pointer = "".join(f"/{part}" for part in error.absolute_path)
        message = f"not a valid JSON Schema: {error.message[:200]}"
        report.error("WF118", message, node_at(node, pointer), None)
        return True
    return False
