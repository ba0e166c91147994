"""How model families write tool calls: one description each, read by grammar and parser alike."""

from flowforge.grammars.tool_formats.argument_grammars import ArgumentGrammar
from flowforge.grammars.tool_formats.call_parser import (
    CallDone,
    CallParser,
    CallStarted,
    ContentText,
    Piece,
)
from flowforge.grammars.tool_formats.compilation import CompiledTools, compile_tools
from flowforge.grammars.tool_formats.description import ToolFormat
from flowforge.grammars.tool_formats.families import GENERIC, TOOL_FORMATS, choose_format
from flowforge.grammars.tool_formats.instructions import (
    NO_MORE_CALLS,
    describe_result,
    describe_tools,
)
from flowforge.grammars.tool_formats.requests import (
    CallsAnswer,
    NamedTool,
    Reasoning,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    ToolsRequest,
)
from flowforge.grammars.tool_formats.writer import write_calls

__all__ = [
    "GENERIC",
    "NO_MORE_CALLS",
    "TOOL_FORMATS",
    "ArgumentGrammar",
    "CallDone",
    "CallParser",
    "CallStarted",
    "CallsAnswer",
    "CompiledTools",
    "ContentText",
    "NamedTool",
    "Piece",
    "Reasoning",
    "ToolCall",
    "ToolChoice",
    "ToolDefinition",
    "ToolFormat",
    "ToolsRequest",
    "choose_format",
    "compile_tools",
    "describe_result",
    "describe_tools",
    "write_calls",
]
