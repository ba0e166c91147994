"""Tools compiled: the constraint of an answer that may call them, and the parser that reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.grammars.compilation import GrammarRefused, compile_mask_grammar
from flowforge.grammars.tool_formats.call_parser import CallParser
from flowforge.grammars.tool_formats.description import Span, Text
from flowforge.grammars.tool_formats.grammar import (
    ToolGrammar,
    loose_whole,
    properties_of,
)
from flowforge.grammars.tool_formats.requests import NamedTool, ToolsRequest

if TYPE_CHECKING:
    from flowforge.grammars.constraint import CompiledConstraint
    from flowforge.grammars.tool_formats.description import Parts, ToolFormat
    from flowforge.grammars.tool_formats.requests import ToolDefinition
    from flowforge.grammars.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class LooseArgument:
    """An argument that the mask holds to its syntax only; the judge sees to its schema.

    name: "" for the arguments as a whole.
    """

    tool: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class CompiledTools:
    """What answers of one kind must be. Immutable; may be cached like its constraint.

    loose: what the mask could not be made to enforce, by tool and argument.
    """

    constraint: CompiledConstraint
    format: ToolFormat
    request: ToolsRequest
    loose: tuple[LooseArgument, ...]

    def parser(self) -> CallParser:
        """A reader for one answer."""
        return CallParser(self.format, self.request)


def compile_tools(
    request: ToolsRequest, format: ToolFormat, vocabulary: Vocabulary
) -> CompiledTools:
    """Compile for one vocabulary.

    A schema that cannot be enforced loosens its own argument and nothing else.
    Raises WorkflowError WF421 for tools that cannot be told apart or not be called, or a grammar
    that is too large.
    """
    _require_sound(request)
    spoken = without_endings(format, vocabulary.eos_texts)
    grammar = ToolGrammar(spoken, vocabulary.control_ids)
    try:
        constraint = compile_mask_grammar(grammar.write(request), vocabulary)
    except GrammarRefused:
        constraint = _compile_loosened(grammar, request, vocabulary)
    wholes = ((tool.name, loose_whole(tool)) for tool in request.callable_tools)
    loose = [LooseArgument(tool, "", reason) for tool, reason in wholes if reason is not None]
    loose += [LooseArgument(*key, reason) for key, reason in grammar.loose.items()]
    return CompiledTools(constraint, spoken, request, tuple(loose))


def without_endings(format: ToolFormat, endings: frozenset[str]) -> ToolFormat:
    """The format as a model writes it that ends its turn with one of these marks."""

    def strip(parts: Parts) -> Parts:
        kept = (
            replace(part, text=_without(part.text, endings)) if isinstance(part, Text) else part
            for part in parts
        )
        return tuple(part for part in kept if part != Text(""))

    content = format.content
    return replace(
        format,
        call=strip(format.call),
        end=strip(format.end),
        content=None
        if content is None
        else Span(content.opening, _without(content.closing, endings)),
    )


def _without(text: str, endings: frozenset[str]) -> str:
    for ending in endings:
        text = text.replace(ending, "")
    return text


def _require_sound(request: ToolsRequest) -> None:
    names = [tool.name for tool in request.tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _refused(f"two tools are called {twice!r}", "leave one out, or rename it")
    if isinstance(request.choice, NamedTool) and not request.callable_tools:
        known = ", ".join(map(repr, names)) or "none"
        raise _refused(f"there is no tool {request.choice.name!r} to be called", f"tools: {known}")
    if request.choice == "required" and not request.tools:
        raise _refused("a call is required, and there is no tool", None)


def _compile_loosened(
    grammar: ToolGrammar, request: ToolsRequest, vocabulary: Vocabulary
) -> CompiledConstraint:
    """Find the arguments that do not compile by themselves, and loosen these."""
    for tool in request.callable_tools:
        for name in properties_of(tool):
            alone = _alone(tool, name)
            try:
                text = ToolGrammar(grammar.format, grammar.control_ids, dict(grammar.loose))
                compile_mask_grammar(text.write(ToolsRequest((alone,), "required", 1)), vocabulary)
            except GrammarRefused as error:
                grammar.loose[tool.name, name] = error.reason
    try:
        return compile_mask_grammar(grammar.write(request), vocabulary)
    except GrammarRefused as error:
        count = len(request.callable_tools)
        raise _refused(
            f"{count} tools cannot be offered together: {error.reason}",
            "offer fewer tools in one step",
        ) from error


def _alone(tool: ToolDefinition, name: str) -> ToolDefinition:
    parameters = {**tool.parameters, "properties": {name: properties_of(tool)[name]}}
    return replace(tool, parameters={**parameters, "required": [name]})


def _refused(message: str, help: str | None) -> WorkflowError:
    return WorkflowError("WF421", message, help=help)
