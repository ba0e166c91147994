"""Writes calls as a format's model would: for examples, and for histories that no model wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, assert_never

from flowforge.grammars.tool_formats.description import (
    Arguments,
    CallId,
    Gap,
    LiteralSyntax,
    Name,
    TaggedSyntax,
    Text,
)
from flowforge.grammars.tool_formats.grammar import properties_of
from flowforge.grammars.tool_formats.literals import write_literal
from flowforge.grammars.tool_formats.texts import text_argument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.grammars.schema_dialect import JsonValue
    from flowforge.grammars.tool_formats.description import Parts, ToolFormat
    from flowforge.grammars.tool_formats.requests import ToolCall, ToolDefinition

_JSON = LiteralSyntax()


def write_calls(
    calls: Sequence[ToolCall], tools: Sequence[ToolDefinition], format: ToolFormat
) -> str:
    """The text of some calls, at least one. tools: those that they call."""
    known = {tool.name: tool for tool in tools}
    written = [_write_call(call, known[call.name], format) for call in calls]
    between = _write(format.separator or (), None, format)
    begin, end = _write(format.begin, None, format), _write(format.end, None, format)
    return begin + between.join(written) + end


def _write_call(call: ToolCall, tool: ToolDefinition, format: ToolFormat) -> str:
    return _write(format.call, (call, tool), format)


def _write(
    parts: Parts, subject: tuple[ToolCall, ToolDefinition] | None, format: ToolFormat
) -> str:
    return "".join(_part(part, subject, format) for part in parts)


def _part(
    part: Text | Gap | Name | Arguments | CallId,
    subject: tuple[ToolCall, ToolDefinition] | None,
    format: ToolFormat,
) -> str:
    match part:
        case Text(text):
            return text
        case Gap(usual):
            return usual
        case Name():
            assert subject is not None
            return subject[0].name
        case CallId(_, example):
            call_id = None if subject is None else subject[0].call_id
            return example if call_id is None else call_id
        case Arguments():
            assert subject is not None
            return _arguments(subject[0].arguments, subject[1], format)
        case _:
            assert_never(part)


def _arguments(given: Mapping[str, JsonValue], tool: ToolDefinition, format: ToolFormat) -> str:
    syntax = format.arguments
    if isinstance(syntax, TaggedSyntax):
        return "".join(_tagged(name, value, tool, format, syntax) for name, value in given.items())
    pairs = (
        (json.dumps(name, ensure_ascii=False) if syntax.quotes_argument_names else name)
        + syntax.pair_separator
        + write_literal(value, syntax)
        for name, value in given.items()
    )
    return syntax.opening + syntax.item_separator.join(pairs) + syntax.closing


def _tagged(
    name: str, value: JsonValue, tool: ToolDefinition, format: ToolFormat, syntax: TaggedSyntax
) -> str:
    argument = text_argument(properties_of(tool).get(name), tool.parameters)
    text = write_literal(value, _JSON) if argument is None else argument.write(value)
    before, after = _write(syntax.before_value, None, format), _write(syntax.after, None, format)
    return f"{syntax.before_name}{name}{before}{text}{syntax.after_value}{after}"
