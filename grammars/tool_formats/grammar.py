"""The grammar of an answer that may call tools, written from a format's description.

One grammar holds the answer from its first token on: free text, in which a call is recognised as
soon as its first mark is there, and calls, in which only the tools' names and arguments fit.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from flowforge.grammars.tool_formats.argument_grammars import text_before, text_in_literal
from flowforge.grammars.tool_formats.description import (
    Arguments,
    CallId,
    Gap,
    LiteralSyntax,
    Name,
    TaggedSyntax,
    Text,
)
from flowforge.grammars.tool_formats.lark_text import (
    ANY_TEXT,
    LarkText,
    escaped,
    quoted,
    regex,
    without,
)
from flowforge.grammars.tool_formats.requests import NamedTool
from flowforge.grammars.tool_formats.texts import text_argument
from flowforge.grammars.tool_formats.values import (
    NotEnforceable,
    ValueRules,
    in_order,
    require_known,
    required_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flowforge.grammars.schema_dialect import JsonValue
    from flowforge.grammars.tool_formats.description import Parts, ToolFormat
    from flowforge.grammars.tool_formats.requests import ToolDefinition, ToolsRequest

_JSON = LiteralSyntax()
_LEAST_MARK_CHARS = 4
# What stands between thoughts and answer.
_AFTER_REASONING = regex("[ \n]{0,4}")


@dataclass(slots=True)
class ToolGrammar:
    """The text of one grammar, and what had to be left to the judge.

    loose: arguments, by tool and name, whose values are held to their syntax alone; with the
    reason. Arguments that the syntax cannot enforce are added to it.
    """

    format: ToolFormat
    control_ids: Mapping[str, int]
    loose: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    def write(self, request: ToolsRequest) -> str:
        """The grammar."""
        lark = LarkText(self.control_ids)
        writer = _Writer(lark, self.format, request, self.loose)
        lark.start(writer.answer())
        return str(lark)


class _Writer:
    def __init__(
        self,
        lark: LarkText,
        format: ToolFormat,
        request: ToolsRequest,
        loose: dict[tuple[str, str], str],
    ) -> None:
        self._lark = lark
        self._format = format
        self._request = request
        self._loose = loose

    # -- the answer -------------------------------------------------------------------------------

    def answer(self) -> str:
        body = self._lark.rule("answer", self._body())
        span, reasoning = self._format.reasoning, self._request.reasoning
        if span is None or reasoning == "none":
            return body
        thought = f"{self._lark.until(span.closing)} {self._lark.terminal(_AFTER_REASONING)}"
        if reasoning == "opened":
            return f"{thought} {body}"
        return f"({self._lark.exactly(span.opening)} {thought})? {body}"

    def _body(self) -> str:
        parts = (*self._format.begin, *self._format.call)
        match self._request.choice:
            case "required" | NamedTool():
                return self._calls(parts)
            case "none":
                return self._text()
            case "auto" if self._format.anywhere:
                first, rest = _split_first(self._lark, parts)
                return f"{self._text()} | {self._lark.until(first)} {self._calls(rest)}"
            case "auto":
                # One literal, which ends where text may not go on: a shorter one would be text.
                return f"{self._text()} | {self._calls(_joined(parts))}"
            case _:
                assert_never(self._request.choice)

    def _text(self) -> str:
        """Free text in which no call begins."""
        content = self._format.content
        if content is not None:
            opening, closing = (
                self._lark.exactly(content.opening),
                self._lark.exactly(content.closing),
            )
            return f"{opening} {self._lark.terminal(ANY_TEXT)} {closing}"
        if self._format.anywhere:
            first, _ = _split_first(self._lark, (*self._format.begin, *self._format.call))
            if self._request.choice == "none":
                # Half a mark is a sign already that the model is about to call.
                first = first[: max(_LEAST_MARK_CHARS, len(first) // 2)]
            return self._lark.terminal(without(first))
        return self._lark.terminal(f"{ANY_TEXT} & ~/(?s:{escaped(self._format.trigger)}.*)/")

    def _calls(self, first_parts: Parts) -> str:
        most, separator = self._request.max_calls, self._format.separator
        first = self._call(first_parts)
        end = self._parts(self._format.end)
        if separator is None or most == 1:
            return f"{first} {end}"
        another = f"{self._parts(separator)} {self._call(self._format.call)}"
        return f"{first} ({self._lark.rule('another', another)}){{0,{most - 1}}} {end}"

    # -- one call ---------------------------------------------------------------------------------

    def _call(self, parts: Parts) -> str:
        place = parts.index(Name())
        tools = " | ".join(
            self._lark.rule("tool", f"{quoted(tool.name)} {self._parts(parts[place + 1 :], tool)}")
            for tool in self._request.callable_tools
        )
        return f"{self._parts(parts[:place])} {self._lark.rule('call', tools)}"

    def _parts(self, parts: Parts, tool: ToolDefinition | None = None) -> str:
        expressions: list[str] = []
        for part in parts:
            match part:
                case Text(text):
                    expressions.append(self._lark.exactly(text))
                case Gap(usual):
                    expressions.append(f"{quoted(usual)}?")
                case CallId(pattern):
                    expressions.append(self._lark.terminal(regex(pattern)))
                case Arguments():
                    assert tool is not None
                    expressions.append(self._lark.rule("arguments", self._arguments(tool)))
                case Name():
                    raise AssertionError("a name stands before the tool's own parts")
                case _:
                    assert_never(part)
        return " ".join(expressions)

    # -- arguments --------------------------------------------------------------------------------

    def _arguments(self, tool: ToolDefinition) -> str:
        syntax = self._format.arguments
        properties = properties_of(tool)
        if isinstance(syntax, TaggedSyntax):
            members = [self._tagged(tool, name, syntax) for name in properties]
            return in_order(self._lark, self._with_need(tool, members), "")
        members = [self._literal(tool, name, syntax) for name in properties]
        separator = quoted(syntax.item_separator)
        inside = in_order(self._lark, self._with_need(tool, members), separator)
        return f"{quoted(syntax.opening)} {inside} {quoted(syntax.closing)}"

    def _with_need(self, tool: ToolDefinition, members: Sequence[str]) -> list[tuple[str, bool]]:
        required = required_of(tool.parameters)
        return [
            (member, name in required)
            for member, name in zip(members, properties_of(tool), strict=True)
        ]

    def _literal(self, tool: ToolDefinition, name: str, syntax: LiteralSyntax) -> str:
        key = json.dumps(name, ensure_ascii=False) if syntax.quotes_argument_names else name
        rules = ValueRules(self._lark, syntax, tool.parameters)
        grammar = tool.grammars.get(name)
        if grammar is None:
            value = self._held(tool, name, rules.value, rules.any_value)
        else:
            value = self._held(
                tool,
                name,
                lambda _: text_in_literal(self._lark, grammar, syntax),
                lambda: rules.value({"type": "string"}),
            )
        return f"{quoted(key)} {quoted(syntax.pair_separator)} {value}"

    def _tagged(self, tool: ToolDefinition, name: str, syntax: TaggedSyntax) -> str:
        schema = properties_of(tool)[name]
        text = text_argument(schema, tool.parameters)
        rules = ValueRules(self._lark, _JSON, tool.parameters)
        ending, grammar = syntax.after_value, tool.grammars.get(name)
        if grammar is not None:
            value = self._held(
                tool,
                name,
                lambda _: text_before(self._lark, grammar, ending),
                lambda: self._lark.until(ending),
            )
        elif text is None:
            json_value = self._held(tool, name, rules.value, rules.any_value)
            value = f"{json_value} {self._lark.exactly(ending)}"
        else:
            value = self._held(
                tool,
                name,
                lambda _: self._lark.until(ending, f"({text.body(ending)})"),
                lambda: self._lark.until(ending),
            )
        head = f"{self._lark.exactly(syntax.before_name)} {quoted(name)}"
        before, after = self._parts(syntax.before_value), self._parts(syntax.after)
        return f"{head} {before} {value} {after}"

    def _held(
        self,
        tool: ToolDefinition,
        name: str,
        strict: Callable[[JsonValue], str],
        loose: Callable[[], str],
    ) -> str:
        if (tool.name, name) not in self._loose:
            try:
                return strict(properties_of(tool)[name])
            except NotEnforceable as reason:
                self._loose[tool.name, name] = f"{reason} cannot be enforced in this format"
        return loose()


def properties_of(tool: ToolDefinition) -> dict[str, JsonValue]:
    """The arguments of a tool, by name, each with its schema; required ones without one are any."""
    found = tool.parameters.get("properties", {})
    properties = dict(found) if isinstance(found, dict) else {}
    for name in required_of(tool.parameters):
        if isinstance(name, str):
            properties.setdefault(name, True)
    return properties


def loose_whole(tool: ToolDefinition) -> str | None:
    """Why a tool's arguments are not enforced together, where they are not."""
    try:
        known = {"type", "properties", "required", "additionalProperties"}
        require_known(tool.parameters, known)
    except NotEnforceable as reason:
        return f"{reason} of the arguments as a whole is not enforced"
    return None


def _joined(parts: Parts) -> Parts:
    """The parts with the texts that begin them as one."""
    texts = list(itertools.takewhile(lambda part: isinstance(part, Text), parts))
    whole = "".join(part.text for part in texts if isinstance(part, Text))
    return (Text(whole), *parts[len(texts) :]) if whole else parts


def _split_first(lark: LarkText, parts: Parts) -> tuple[str, Parts]:
    """The first mark of a call, and the parts without it."""
    head, *rest = parts
    assert isinstance(head, Text), "a format whose calls may follow text begins with a mark"
    first, *pieces = lark.pieces(head.text)
    return first, (Text("".join(pieces)), *rest)
