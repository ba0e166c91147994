"""How one model is told of tools, and how its calls are read: template, format and tokenizer meet.

A template that knows tools is used for them; with any other, or with a format that is not the
template's own, tools and results are told in plain text.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from flowforge.engine.text.messages import Message, ToolSchema
from flowforge.engine.text.messages import ToolCall as SaidCall
from flowforge.grammars.constraint_cache import ConstraintCache
from flowforge.grammars.tool_formats import (
    GENERIC,
    NO_MORE_CALLS,
    ToolsRequest,
    choose_format,
    compile_tools,
    describe_result,
    describe_tools,
    write_calls,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.backends.protocol import JsonValue, ToolOffer
    from flowforge.engine.text.chat_template import ChatTemplate
    from flowforge.grammars import Vocabulary
    from flowforge.grammars.tool_formats import CompiledTools, Reasoning, ToolCall, ToolDefinition
    from flowforge.grammars.tool_formats.description import Span

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class History:
    """A conversation's turns.

    messages: all so far. num_seen: how many of the first are in the sequence as tokens. tools:
    those that the template shows; offered: those that the model has been told of in any way. calls:
    of the last turn that it wrote.
    """

    messages: tuple[Message, ...]
    num_seen: int = 0
    tools: tuple[ToolSchema, ...] = ()
    offered: tuple[ToolDefinition, ...] = ()
    calls: tuple[SaidCall, ...] = ()

    @property
    def seen(self) -> tuple[Message, ...]:
        """The messages that are in the sequence."""
        return self.messages[: self.num_seen]

    @property
    def waiting(self) -> tuple[Message, ...]:
        """The messages that are not."""
        return self.messages[self.num_seen :]

    def with_message(self, message: Message) -> History:
        """One more that waits."""
        return replace(self, messages=(*self.messages, message))

    def with_written(self, message: Message, calls: tuple[SaidCall, ...] = ()) -> History:
        """The turn that the model has written, which is in the sequence as all before it."""
        messages = (*self.messages, message)
        return replace(self, messages=messages, num_seen=len(messages), calls=calls)


class ToolSpeech:
    """What one model says and hears about tools.

    format: how it writes calls. is_native: whether the template tells it of tools by itself.
    """

    def __init__(self, template: ChatTemplate, format_name: str | None = None) -> None:
        """format_name: of a tool format; None for the one that the template speaks.

        Raises EngineError EN321 for a name that no format has.
        """
        own = choose_format(template.source)
        self.format = choose_format(template.source, format_name)
        self._template = template
        self._speaks_own = self.format is own and own is not GENERIC
        self._cache: ConstraintCache[CompiledTools] = ConstraintCache()

    @cached_property
    def is_native(self) -> bool:
        """See the class."""
        return self._speaks_own and self._template.takes_tools and self._template.takes_tool_calls

    def introduce(self, history: History, offer: ToolOffer) -> History:
        """The history with the offer's tools told to the model, those that it does not know yet."""
        if offer.choice == "none" and history.calls and not self.is_native:
            history = self._asked_to_answer(history)
        new = tuple(tool for tool in offer.tools if tool not in history.offered)
        if not new:
            return history
        offered = (*history.offered, *new)
        if self.is_native and history.num_seen == 0:
            schemas = tuple(
                ToolSchema(tool.name, tool.description, tool.parameters) for tool in offered
            )
            return replace(history, tools=schemas, offered=offered)
        told = describe_tools(new, self.format)
        return replace(self._told(history, told), offered=offered)

    def with_written(self, history: History, text: str, calls: Sequence[ToolCall]) -> History:
        """The history with the turn that the model has written."""
        num_before = sum(len(message.tool_calls) for message in history.messages)
        said = tuple(
            # Nine letters and digits: some templates insist.
            SaidCall(call.name, call.arguments, call.call_id or f"call{num_before + idx:05d}")
            for idx, call in enumerate(calls)
        )
        if self.is_native:
            return history.with_written(Message("assistant", text, tool_calls=said), said)
        # To a template that knows no calls they are text.
        shown = write_calls(calls, history.offered, self.format) if calls else ""
        return history.with_written(Message("assistant", text + shown), said)

    def add_results(self, history: History, results: Sequence[JsonValue]) -> History:
        """The history with the results of its last turn's calls, in their order."""
        pairs = list(zip(history.calls, results, strict=True))
        if self.is_native:
            for call, result in pairs:
                text = result if isinstance(result, str) else _json(result)
                message = Message("tool", text, name=call.name, tool_call_id=call.id)
                history = history.with_message(message)
            return history
        texts = (describe_result(call.name, _json(result)) for call, result in pairs)
        return history.with_message(Message("user", "\n".join(texts)))

    def reasoning(self, prompt_end: str) -> Reasoning:
        """Whether an answer after this prompt may begin with thoughts, or has begun with them."""
        span = self.format.reasoning
        if span is None or span.opening not in self._template.source:
            return "none"
        return "opened" if prompt_end.rstrip().endswith(span.opening) else "possible"

    def thinking_span(self, *, calls_tools: bool) -> Span | None:
        """What stands around and behind the model's thoughts; None where it is known to have none.

        calls_tools: whether a turn with tools follows, which brings marks of its own.
        """
        span, source = self.format.reasoning, self._template.source
        if span is None or (span.opening not in source and span.closing not in source):
            return None
        content = self.format.content
        return span if calls_tools or content is None else replace(span, after=content.opening)

    def compile(
        self, offer: ToolOffer, reasoning: Reasoning, vocabulary: Vocabulary
    ) -> CompiledTools:
        """The constraint of a turn under an offer; kept by what it is made of. Blocks at first."""
        request = ToolsRequest(offer.tools, offer.choice, offer.max_calls, reasoning)

        def compile() -> CompiledTools:
            compiled = compile_tools(request, self.format, vocabulary)
            for one in compiled.loose:
                place = (
                    f"argument {one.name!r} of tool {one.tool!r}" if one.name else repr(one.tool)
                )
                _logger.warning("%s is checked after it is written: %s", place, one.reason)
            return compiled

        return self._cache.get(repr(request), compile)

    def _asked_to_answer(self, history: History) -> History:
        """Say with the results that no more calls are wanted."""
        if not history.waiting:
            return history
        *before, last = history.messages
        asked = replace(last, content=f"{last.content}\n{NO_MORE_CALLS}")
        return replace(history, messages=(*before, asked))

    def _told(self, history: History, text: str) -> History:
        """Put a text before what is said next: into the system message while there is none yet."""
        messages = list(history.messages)
        if history.num_seen == 0 and self._template.takes_system:
            if messages and messages[0].role == "system":
                messages[0] = _begun_with(messages[0], messages[0].content, text)
            else:
                messages.insert(0, Message("system", text))
            return replace(history, messages=tuple(messages))
        for idx in range(history.num_seen, len(messages)):
            if messages[idx].role == "user":
                messages[idx] = _begun_with(messages[idx], text, messages[idx].content)
                return replace(history, messages=tuple(messages))
        return history.with_message(Message("user", text))


def _begun_with(message: Message, first: str, then: str) -> Message:
    return replace(message, content=f"{first}\n\n{then}")


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)
