"""What a model is told of a tool: its name, what it does, and its arguments."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from flowforge.grammars.tool_formats import ToolDefinition
from flowforge.language.program import Required

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue, Program, ToolSpec
    from flowforge.tools.function_tool import FunctionTool

# Titles repeat the names, and of defaults the function itself knows the right ones.
_UNTOLD = ("title", "default")
_SECTION = re.compile(r"^(args|arguments|parameters)\s*:\s*$", re.IGNORECASE)
_OTHER_SECTION = re.compile(r"^[A-Z][A-Za-z ]*:\s*$")
_ARGUMENT = re.compile(r"^\s*\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)$")


def definition_of_function(spec: ToolSpec, tool: FunctionTool) -> ToolDefinition:
    """The function's docstring and type hints, unless the declaration says otherwise."""
    summary, of_arguments = read_docstring(tool.doc)
    parameters = dict(spec.parameters) if spec.parameters is not None else tool.json_schema()
    return ToolDefinition(
        spec.name,
        spec.description or summary,
        described(parameters, of_arguments),
        tool.grammars,
    )


def definition_of_program(spec: ToolSpec, program: Program) -> ToolDefinition:
    """A workflow's inputs as arguments."""
    properties: dict[str, JsonValue] = {
        name: dict(one.schema) for name, one in program.inputs.items()
    }
    required: list[JsonValue] = [
        name for name, one in program.inputs.items() if isinstance(one.default, Required)
    ]
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return ToolDefinition(spec.name, spec.description or program.name, parameters)


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The first paragraph, and the descriptions of arguments under 'Args:'."""
    lines = inspect.cleandoc(doc).splitlines()
    summary: list[str] = []
    for line in lines:
        if not line.strip() or _SECTION.match(line.strip()):
            break
        summary.append(line.strip())
    return " ".join(summary), _arguments(lines)


def described(
    parameters: Mapping[str, JsonValue], of_arguments: Mapping[str, str]
) -> dict[str, JsonValue]:
    """A schema of arguments with descriptions, and without titles that repeat the names."""
    plain = {key: value for key, value in parameters.items() if key != "title"}
    properties = plain.get("properties")
    if not isinstance(properties, dict):
        return plain
    told: dict[str, JsonValue] = {}
    for name, schema in properties.items():
        if isinstance(schema, dict):
            schema = {key: value for key, value in schema.items() if key not in _UNTOLD}
            if name in of_arguments and "description" not in schema:
                schema["description"] = of_arguments[name]
        told[name] = schema
    return {**plain, "properties": told}


def _arguments(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    start = next((i for i, line in enumerate(lines) if _SECTION.match(line.strip())), None)
    if start is None:
        return found
    indent: int | None = None
    name = ""
    for line in lines[start + 1 :]:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        if depth < indent or (depth == 0 and _OTHER_SECTION.match(line)):
            break
        hit = _ARGUMENT.match(line) if depth == indent else None
        if hit is not None:
            name = hit["name"]
            found[name] = hit["text"].strip()
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
