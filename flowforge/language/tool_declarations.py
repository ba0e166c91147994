"""The tools that a workflow declares under `tools:`; no code of theirs is imported here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from flowforge.language.durations import duration_of
from flowforge.language.fields import (
    check_keys,
    integer_of,
    is_safe_name,
    mapping_of,
    place_of,
    text_of,
    word_of,
)
from flowforge.language.named_types import schema_of_entry
from flowforge.language.program import ToolSpec
from flowforge.language.types import ANY, type_of_schema

if TYPE_CHECKING:
    from flowforge.language.named_types import NamedTypes
    from flowforge.language.program import JsonValue
    from flowforge.language.scope import Report
    from flowforge.language.yaml_nodes import Entry, MappingNode

_KEYS = ("python", "effect", "on_uncertain", "timeout", "concurrency", "parameters", "returns")
_UNBUILT_KEYS = ("mcp", "workflow", "grammar", "description")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_FORM = "write tools: { filings: { python: tools.filings:query, effect: read } }"
_MAX_CONCURRENCY = 10_000


def parse_tools(entry: Entry | None, types: NamedTypes, report: Report) -> dict[str, ToolSpec]:
    """The declared tools; one that is broken takes and returns anything."""
    mapping = None if entry is None else mapping_of(entry, report, _FORM)
    tools: dict[str, ToolSpec] = {}
    for one in mapping.entries if mapping is not None else ():
        is_safe_name(one.key, one.key_span, "tool", report)
        declaration = mapping_of(one, report, _FORM)
        if declaration is not None:
            check_keys(declaration, _KEYS, _UNBUILT_KEYS, f"tool {one.key!r}", report)
            tools[one.key] = _tool_of(one, declaration, types, report)
    return tools


def _tool_of(entry: Entry, declaration: MappingNode, types: NamedTypes, report: Report) -> ToolSpec:
    returns = declaration.entry("returns")
    result = None if returns is None else schema_of_entry(returns, "WF118", types, report, None)
    return ToolSpec(
        name=entry.key,
        function=_function_of(entry, declaration, report),
        effect=_effect_of(declaration, report),
        on_uncertain=_on_uncertain_of(declaration, report),
        parameters=_parameters_of(declaration.entry("parameters"), types, report),
        result=ANY if result is None else type_of_schema(result),
        timeout_s=duration_of(declaration.entry("timeout"), report),
        concurrency=integer_of(declaration.entry("concurrency"), report, 1, _MAX_CONCURRENCY),
        location=report.source.location(entry.key_span.start),
    )


def _function_of(entry: Entry, declaration: MappingNode, report: Report) -> str:
    python = declaration.entry("python")
    if python is None:
        message = f"tool {entry.key!r} does not say what it is"
        report.error("WF103", message, entry.key_span, "add python: module:function")
        return ""
    text = text_of(python, report)
    if text is not None and not _FUNCTION.fullmatch(text.strip()):
        message = f"'python' must be module:function, got {text[:60]!r}"
        report.error("WF132", message, place_of(python, report), "for example tools.filings:query")
    return "" if text is None else text.strip()


def _effect_of(declaration: MappingNode, report: Report) -> Literal["read", "idempotent", "write"]:
    word = word_of(declaration.entry("effect"), report, ("read", "idempotent", "write"))
    if word == "read":
        return "read"
    # Nobody is hurt by taking a tool that says nothing for one that changes something.
    return "idempotent" if word == "idempotent" else "write"


def _on_uncertain_of(declaration: MappingNode, report: Report) -> Literal["ask", "retry", "fail"]:
    word = word_of(declaration.entry("on_uncertain"), report, ("ask", "retry", "fail"))
    match word:
        case "retry" | "fail":
            return word
        case _:
            return "ask"


def _parameters_of(
    entry: Entry | None, types: NamedTypes, report: Report
) -> dict[str, JsonValue] | None:
    if entry is None:
        return None
    schema = schema_of_entry(entry, "WF118", types, report, None)
    if schema is not None and schema.get("type") != "object":
        message = "'parameters' must be a JSON Schema of an object"
        help = "parameters: { type: object, properties: { year: { type: integer } } }"
        report.error("WF132", message, place_of(entry, report), help)
        return None
    return schema
