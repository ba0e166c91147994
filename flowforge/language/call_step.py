"""The verb `call`: the orchestrator runs a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.arguments import ArgumentsAlone, parse_arguments
from flowforge.language.diagnostics import did_you_mean
from flowforge.language.fields import place_of, text_of
from flowforge.language.program import Call
from flowforge.language.secrets import with_secrets
from flowforge.language.types import ANY, Field, Object, type_of_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.arguments import ArgumentsDraft
    from flowforge.language.drafts import Context
    from flowforge.language.program import ToolSpec
    from flowforge.language.scope import Names
    from flowforge.language.source import Span
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import MappingNode

STEP_KEYS = ("call", "with")


@dataclass(frozen=True, slots=True)
class CallDraft:
    """A `call` step before names are resolved."""

    tool: ToolSpec
    member: str | None
    arguments: ArgumentsDraft
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the arguments read."""
        return self.arguments.references()

    def resolve(self, names: Names, context: Context) -> tuple[Call, Type] | None:
        """The verb, and what the file says the tool returns."""
        names = with_secrets(names, context.secrets)
        arguments = self.arguments.typed(names, context.report)
        if self.tool.parameters is not None:
            type_ = type_of_schema(dict(self.tool.parameters))
            assert isinstance(type_, Object)
            known = {field.name: field for field in type_.fields}
            if type_.extra is not None:
                known |= {name: Field(name, ANY, False) for name in arguments if name not in known}
            self.arguments.check(arguments, known, f"tool {self.tool.name!r}", context.report)
        return Call(self.tool.name, arguments, self.member), self.tool.result


def parse_call(name: str, step: MappingNode, context: Context) -> CallDraft | ArgumentsAlone:
    """Read a `call` step."""
    del name
    entry = step.entry("call")
    assert entry is not None
    arguments = parse_arguments(entry, step.entry("with"), context)
    alone = ArgumentsAlone(arguments, context.secrets)
    tool_name = text_of(entry, context.report)
    if tool_name is None:
        return alone
    server_name, _, member = tool_name.partition("__")
    tool = context.tools.get(server_name if member else tool_name)
    if tool is not None and tool.program is not None:
        message = f"tool {tool_name!r} is a workflow"
        context.report.error("WF131", message, place_of(entry, context.report), "use 'run'")
        return alone
    if tool is not None and (tool.server is not None) != bool(member):
        message = f"tool {tool_name!r} is {'a server' if not member else 'no server'}"
        help = f"name one of its tools: call: {tool_name}__TOOL" if not member else None
        context.report.error("WF131", message, place_of(entry, context.report), help)
        return alone
    if tool is None:
        known = ", ".join(context.tools)
        otherwise = f"tools: {known}" if known else "declare it: tools: { NAME: { python: … } }"
        help = did_you_mean(tool_name, context.tools, otherwise)
        message = f"there is no tool {tool_name[:60]!r}"
        context.report.error("WF131", message, place_of(entry, context.report), help)
        return alone
    return CallDraft(tool, member or None, arguments)
