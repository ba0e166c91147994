"""Tools told in plain text, for models whose chat template has no place for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flowforge.grammars.tool_formats.requests import ToolCall, ToolDefinition
from flowforge.grammars.tool_formats.writer import write_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.grammars.tool_formats.description import ToolFormat

NO_MORE_CALLS = "Now answer, without calling a tool."
"""What is said with the last results that a model gets."""

_EXAMPLE_TOOL = ToolDefinition(
    "tool_name",
    "",
    {"type": "object", "properties": {"argument_name": {"type": "string"}}},
)
_EXAMPLE_CALL = ToolCall("tool_name", {"argument_name": "value"})


def describe_tools(tools: Sequence[ToolDefinition], format: ToolFormat) -> str:
    """What a system or user text says about the tools and how to call them."""
    described = "\n".join(
        json.dumps(
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
            ensure_ascii=False,
        )
        for tool in tools
    )
    example = write_calls([_EXAMPLE_CALL], [_EXAMPLE_TOOL], format)
    return (
        "You can call these tools. Each line describes one, with a JSON Schema of its parameters.\n"
        f"<tools>\n{described}\n</tools>\n"
        f"To call a tool, answer in exactly this form:\n{example}\n"
        "The results come back to you. When you need no tool, answer in plain text."
    )


def describe_result(name: str, result: str) -> str:
    """What a user text says about one result, which is a JSON text."""
    return f"Result of {name}: {result}"
