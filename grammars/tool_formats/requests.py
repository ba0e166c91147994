"""What is asked of the model about tools, and what it asked of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.grammars.schema_dialect import JsonValue
    from flowforge.grammars.tool_formats.argument_grammars import ArgumentGrammar


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as the model knows it.

    parameters: JSON Schema of the arguments as one object. grammars: of arguments that are texts,
    by name; beside the schema, which cannot say it.
    """

    name: str
    description: str
    parameters: Mapping[str, JsonValue]
    grammars: Mapping[str, ArgumentGrammar] = field(default_factory=dict["str", "ArgumentGrammar"])


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The model calls this tool and no other."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "required", "none"] | NamedTool
Reasoning: TypeAlias = Literal["none", "possible", "opened"]
"""Whether an answer begins with what the model thinks: never, if it likes, or within it already."""


@dataclass(frozen=True, slots=True)
class ToolsRequest:
    """What an answer may call. max_calls: of one answer, at least one."""

    tools: tuple[ToolDefinition, ...]
    choice: ToolChoice = "auto"
    max_calls: int = 16
    reasoning: Reasoning = "none"

    @property
    def callable_tools(self) -> tuple[ToolDefinition, ...]:
        """The tools that the choice leaves."""
        if isinstance(self.choice, NamedTool):
            return tuple(tool for tool in self.tools if tool.name == self.choice.name)
        return () if self.choice == "none" else self.tools


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model wrote. call_id: the model's own id for it, in formats that have one."""

    name: str
    arguments: Mapping[str, JsonValue]
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class CallsAnswer:
    """What a whole answer came to. content: the free text. is_whole: False where a call was cut."""

    content: str
    calls: tuple[ToolCall, ...]
    is_whole: bool = True
