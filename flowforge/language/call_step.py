"""The verb `call`: the orchestrator runs a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.fields import place_of, text_of
from flowforge.language.program import Call
from flowforge.language.types import Object, type_of_schema
from flowforge.language.value_drafts import check_arguments, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.language.drafts import Context
    from flowforge.language.program import ToolSpec
    from flowforge.language.scope import Names
    from flowforge.language.source import Span
    from flowforge.language.types import Type
    from flowforge.language.value_drafts import ValueDraft
    from flowforge.language.yaml_nodes import MappingNode

STEP_KEYS = ("call", "with")


@dataclass(frozen=True, slots=True)
class CallDraft:
    """A `call` step before names are resolved."""

    tool: ToolSpec
    arguments: Mapping[str, ValueDraft]
    span: Span
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the arguments read."""
        for argument in self.arguments.values():
            yield from argument.names()

    def resolve(self, names: Names, context: Context) -> tuple[Call, Type] | None:
        """The verb, and what the file says the tool returns."""
        report = context.report
        arguments = {name: one.typed(names, report) for name, one in self.arguments.items()}
        if self.tool.parameters is not None:
            type_ = type_of_schema(dict(self.tool.parameters))
            fields = type_.fields if isinstance(type_, Object) else ()
            given = {name: (one.type, self.arguments[name].span) for name, one in arguments.items()}
            known = {field.name: field for field in fields}
            is_open = isinstance(type_, Object) and type_.extra is not None
            if is_open:
                given = {name: one for name, one in given.items() if name in known}
            check_arguments(given, known, f"tool {self.tool.name!r}", self.span, report)
        return Call(self.tool.name, arguments), self.tool.result


def parse_call(name: str, step: MappingNode, context: Context) -> CallDraft | None:
    """Read a `call` step."""
    del name
    entry = step.entry("call")
    assert entry is not None
    arguments = values_of(step.entry("with"), context, "write with: { argument: value }")
    tool_name = text_of(entry, context.report)
    if tool_name is None:
        return None
    tool = context.tools.get(tool_name)
    if tool is None:
        known = ", ".join(context.tools)
        otherwise = f"tools: {known}" if known else "declare it: tools: { NAME: { python: … } }"
        help = did_you_mean(tool_name, context.tools, otherwise)
        message = f"there is no tool {tool_name[:60]!r}"
        context.report.error("WF131", message, place_of(entry, context.report), help)
        return None
    return CallDraft(tool, arguments, entry.key_span)
