"""Reads what a model writes under a `ToolGrammar`, while it writes: text, and calls as they close.

It walks the same description as the grammar, so that what one allows the other reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, assert_never

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
from flowforge.grammars.tool_formats.literals import NoLiteral, end_of_literal, read_literal
from flowforge.grammars.tool_formats.reading import CutOff, TextReader
from flowforge.grammars.tool_formats.requests import CallsAnswer, ToolCall
from flowforge.grammars.tool_formats.texts import text_argument

if TYPE_CHECKING:
    from collections.abc import Generator

    from flowforge.grammars.schema_dialect import JsonValue
    from flowforge.grammars.tool_formats.description import Parts, ToolFormat
    from flowforge.grammars.tool_formats.reading import Waiting
    from flowforge.grammars.tool_formats.requests import ToolDefinition, ToolsRequest

_JSON = LiteralSyntax()
_WHITE_SPACE = re.compile("[ \n]*")


@dataclass(frozen=True, slots=True)
class ContentText:
    """Free text that became certain."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The model has named a tool; its arguments follow. idx: of the call in the answer."""

    idx: int
    name: str


@dataclass(frozen=True, slots=True)
class CallDone:
    """A call is whole."""

    idx: int
    call: ToolCall


Piece: TypeAlias = ContentText | CallStarted | CallDone


@dataclass(slots=True)
class _Draft:
    """A call while it is read."""

    tool: ToolDefinition | None = None
    arguments: dict[str, JsonValue] | None = None
    call_id: str | None = None


class CallParser:
    """Reads one answer. Where the text is cut into pushes makes no difference."""

    def __init__(self, format: ToolFormat, request: ToolsRequest) -> None:
        self._format = format
        self._request = request
        self._tools = {tool.name: tool for tool in request.callable_tools}
        self._reader = TextReader()
        self._pieces: list[Piece] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._is_whole = False
        self._run = self._answer()

    @property
    def answer(self) -> CallsAnswer:
        """What was read so far; all of it after `finish`."""
        return CallsAnswer("".join(self._content), tuple(self._calls), self._is_whole)

    def push(self, text: str) -> list[Piece]:
        """Take in text; what became certain by it. Raises InternalError IN421."""
        self._reader.rest += text
        return self._go_on()

    def finish(self) -> list[Piece]:
        """No more text comes."""
        self._reader.is_over = True
        return self._go_on()

    def _go_on(self) -> list[Piece]:
        try:
            next(self._run)
        except StopIteration:
            self._is_whole = True
        except CutOff:
            self._is_whole = False
        pieces, self._pieces = self._pieces, []
        return pieces

    # -- the answer -------------------------------------------------------------------------------

    def _answer(self) -> Waiting:
        yield from self._reasoning()
        parts = (*self._format.begin, *self._format.call)
        match self._request.choice:
            case "none":
                yield from self._text()
            case "auto" if self._format.anywhere:
                head, *rest = parts
                assert isinstance(head, Text)
                if (yield from self._reader.until(head.text, self._emit)):
                    yield from self._all_calls(tuple(rest))
            case "auto":
                if (yield from self._reader.begins_with(self._format.trigger)):
                    yield from self._all_calls(parts)
                else:
                    yield from self._text()
            case _:
                yield from self._all_calls(parts)

    def _reasoning(self) -> Waiting:
        span, reader = self._format.reasoning, self._reader
        if span is None or self._request.reasoning == "none":
            return
        if self._request.reasoning == "possible":
            if not (yield from reader.begins_with(span.opening)):
                return
            reader.take(len(span.opening))
        if not (yield from reader.until(span.closing, lambda _: None)):
            raise CutOff
        while not reader.rest.strip(" \n") and not reader.is_over:
            yield
        hit = _WHITE_SPACE.match(reader.rest)
        reader.take(0 if hit is None else hit.end())

    def _text(self) -> Waiting:
        content, reader = self._format.content, self._reader
        if content is not None:
            yield from reader.expect(content.opening)
        if content is not None and content.closing:
            yield from reader.until(content.closing, self._emit)
            return
        while True:
            self._emit(reader.take(len(reader.rest)))
            if reader.is_over:
                return
            yield

    def _emit(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._pieces.append(ContentText(text))

    def _all_calls(self, parts: Parts) -> Waiting:
        yield from self._call(parts)
        while (yield from self._goes_on()):
            yield from self._call(self._format.call)
        yield from self._parts(self._format.end, _Draft())

    def _goes_on(self) -> Generator[None, None, bool]:
        """Pass over what stands between calls, if there is another one."""
        separator, reader = self._format.separator, self._reader
        if separator is None or len(self._calls) == self._request.max_calls:
            return False
        is_begun = False
        for part in separator:
            if isinstance(part, Gap):
                is_begun = (yield from reader.skip(part.usual)) or is_begun
            elif isinstance(part, Text) and not (yield from reader.skip(part.text)):
                return False
        if any(isinstance(part, Text) for part in separator):
            return True
        first = self._format.call[0]
        assert isinstance(first, Text), "calls without a text between them begin with one"
        if is_begun:
            # Nothing but another call follows what stands between calls.
            yield from reader.require(first.text)
            return True
        return (yield from reader.goes_on_with(first.text))

    # -- one call ---------------------------------------------------------------------------------

    def _call(self, parts: Parts) -> Waiting:
        draft = _Draft()
        yield from self._parts(parts, draft)
        assert draft.tool is not None
        call = ToolCall(draft.tool.name, draft.arguments or {}, draft.call_id)
        self._pieces.append(CallDone(len(self._calls), call))
        self._calls.append(call)

    def _parts(self, parts: Parts, draft: _Draft) -> Waiting:
        reader = self._reader
        for part in parts:
            match part:
                case Text(text):
                    yield from reader.expect(text)
                case Gap(usual):
                    yield from reader.skip(usual)
                case Name():
                    name = yield from reader.one_of(self._tools)
                    draft.tool = self._tools[name]
                    self._pieces.append(CallStarted(len(self._calls), name))
                case CallId(pattern):
                    draft.call_id = yield from self._call_id(re.compile(pattern))
                case Arguments():
                    assert draft.tool is not None
                    draft.arguments = {}
                    yield from self._arguments(draft.tool, draft.arguments)
                case _:
                    assert_never(part)

    def _call_id(self, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        reader = self._reader
        while (hit := pattern.match(reader.rest)) is None or hit.end() == len(reader.rest):
            yield from reader.more()
        return reader.take(hit.end())

    # -- arguments --------------------------------------------------------------------------------

    def _arguments(self, tool: ToolDefinition, found: dict[str, JsonValue]) -> Waiting:
        syntax = self._format.arguments
        if isinstance(syntax, TaggedSyntax):
            while (yield from self._reader.skip(syntax.before_name)):
                name = yield from self._reader.one_of(properties_of(tool))
                yield from self._parts(syntax.before_value, _Draft())
                found[name] = yield from self._tagged(tool, name, syntax)
                yield from self._parts(syntax.after, _Draft())
            return
        yield from self._reader.expect(syntax.opening)
        while not (yield from self._reader.skip(syntax.closing)):
            if found:
                yield from self._reader.expect(syntax.item_separator)
            name = yield from self._argument_name(tool, syntax)
            yield from self._reader.expect(syntax.pair_separator)
            found[name] = yield from self._literal(syntax)

    def _argument_name(
        self, tool: ToolDefinition, syntax: LiteralSyntax
    ) -> Generator[None, None, str]:
        if syntax.quotes_argument_names:
            return str((yield from self._literal(_JSON)))
        return (yield from self._reader.one_of(properties_of(tool)))

    def _tagged(
        self, tool: ToolDefinition, name: str, syntax: TaggedSyntax
    ) -> Generator[None, None, JsonValue]:
        argument = text_argument(properties_of(tool)[name], tool.parameters)
        if argument is None:
            value = yield from self._literal(_JSON)
            yield from self._reader.expect(syntax.after_value)
            return value
        texts: list[str] = []
        if not (yield from self._reader.until(syntax.after_value, texts.append)):
            raise CutOff
        return argument.read("".join(texts))

    def _literal(self, syntax: LiteralSyntax) -> Generator[None, None, JsonValue]:
        reader = self._reader
        try:
            while (end := end_of_literal(reader.rest, 0, syntax)) is None:
                yield from reader.more()
            return read_literal(reader.take(end), syntax)
        except NoLiteral as error:
            raise reader.unreadable(f"a value, {error}") from error
