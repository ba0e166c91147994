"""Messages of a chat as the tokens of a prompt.

A client sends the whole conversation each time, so what the model wrote comes back as text. It is
encoded as contents are, and what of the prompt was computed before is found in the cache.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from flowforge.backends.protocol import ToolOffer
from flowforge.backends.tool_speech import History
from flowforge.engine.text.messages import Message, ToolCall
from flowforge.grammars.tool_formats import (
    NamedTool,
    ToolDefinition,
    describe_result,
    write_calls,
)
from flowforge.grammars.tool_formats import ToolCall as WrittenCall
from flowforge.serving.failures import bad_request
from flowforge.serving.requests import NamedChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.backends.engine import EngineBackend
    from flowforge.backends.protocol import JsonValue
    from flowforge.backends.tool_speech import ToolSpeech
    from flowforge.grammars.tool_formats import ToolChoice
    from flowforge.serving.requests import Call, ChatMessage, ChatRequest, ToolSpec

    JsonObject = dict[str, JsonValue]

_MOST_CALLS = 16


def offer_of(request: ChatRequest) -> ToolOffer | None:
    """What the model may call; None without tools."""
    if not request.tools:
        return None
    chosen = request.tool_choice or "auto"
    choice: ToolChoice = (
        NamedTool(chosen.function.name) if isinstance(chosen, NamedChoice) else chosen
    )
    is_one = request.parallel_tool_calls is False or isinstance(choice, NamedTool)
    max_calls = 1 if is_one else _MOST_CALLS
    return ToolOffer(definitions_of(request.tools), choice, max_calls)


def definitions_of(tools: Sequence[ToolSpec]) -> tuple[ToolDefinition, ...]:
    """The tools as models are told of them."""
    return tuple(
        ToolDefinition(
            tool.function.name,
            tool.function.description or "",
            tool.function.parameters or {"type": "object", "properties": {}},
        )
        for tool in tools
    )


def prompt_of(
    backend: EngineBackend,
    messages: Sequence[ChatMessage],
    offer: ToolOffer | None,
    *,
    continues_last: bool = False,
) -> list[int]:
    """The ids of a prompt.

    continues_last: the answer goes on with the last message. Raises RequestError 400 for messages
    that do not follow from each other, EngineError EN304 and EN307 for those that the model's
    template refuses.
    """
    transcript = _Transcript(backend.speech, () if offer is None else offer.tools)
    for idx, message in enumerate(messages):
        transcript.add(message, f"messages[{idx}]")
    transcript.require_answered(f"messages[{len(messages)}]")
    history = History(tuple(transcript.messages))
    if offer is not None:
        history = backend.speech.introduce(history, offer)
    if continues_last and messages[-1].role != "assistant":
        raise bad_request(
            "continue_final_message needs a last message of the assistant", "messages"
        )
    return backend.template.render(history.messages, history.tools, continue_final=continues_last)


@dataclass(slots=True)
class _Transcript:
    """Messages as the model's template takes them, and the calls that wait for a result."""

    speech: ToolSpeech
    tools: tuple[ToolDefinition, ...]
    messages: list[Message] = field(default_factory=list[Message])
    waiting: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    num_calls: int = 0

    def add(self, message: ChatMessage, place: str) -> None:
        """The next message. place: for errors."""
        text = _text_of(message, place)
        match message.role:
            case "tool":
                self._add_result(message, text, place)
                return
            case "assistant":
                self.require_answered(place)
                self._add_assistant(message, text, place)
            case "developer":
                self.require_answered(place)
                self.messages.append(Message("system", text))
            case "system" | "user" as role:
                self.require_answered(place)
                self.messages.append(Message(role, text, name=message.name))

    def require_answered(self, place: str) -> None:
        """Raises RequestError where a call has no result before another message comes."""
        if self.waiting:
            ids = ", ".join(map(repr, self.waiting))
            raise bad_request(
                f"{place}: an assistant message with tool_calls must be followed by a tool message "
                f"for each tool_call_id; without one are {ids}",
                "messages",
            )

    def _add_assistant(self, message: ChatMessage, text: str, place: str) -> None:
        asked = message.tool_calls or []
        calls = [self._call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(asked)]
        if len(self.waiting) < len(calls):
            raise bad_request(f"{place}: two tool_calls have the same id", "messages")
        if self.speech.is_native or not calls:
            self.messages.append(Message("assistant", text, tool_calls=tuple(calls)))
            return
        known = {tool.name for tool in self.tools}
        strange = [call.name for call in calls if call.name not in known]
        tools = (*self.tools, *(ToolDefinition(name, "", {}) for name in strange))
        written = [WrittenCall(call.name, cast("JsonObject", call.arguments)) for call in calls]
        shown = write_calls(written, tools, self.speech.format)
        self.messages.append(Message("assistant", text + shown))

    def _call(self, call: Call, place: str) -> ToolCall:
        try:
            arguments: object = json.loads(call.function.arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise bad_request(f"{place}: arguments are no JSON: {error}", "messages") from None
        if not isinstance(arguments, dict):
            raise bad_request(f"{place}: arguments are no JSON object", "messages")
        # Ids of nine letters and digits that follow from the place: some templates insist, and
        # prompts that are the same but for random ids are the same in the cache.
        said = ToolCall(
            call.function.name, cast("dict[str, object]", arguments), f"call{self.num_calls:05d}"
        )
        self.num_calls += 1
        self.waiting[call.id] = said
        return said

    def _add_result(self, message: ChatMessage, text: str, place: str) -> None:
        if message.tool_call_id is None:
            raise bad_request(f"{place}: tool_call_id is missing", "messages")
        call = self.waiting.pop(message.tool_call_id, None)
        if call is None:
            raise bad_request(
                f"{place}: tool_call_id {message.tool_call_id!r} answers no call of the assistant "
                "message before it",
                "messages",
            )
        if self.speech.is_native:
            self.messages.append(Message("tool", text, name=call.name, tool_call_id=call.id))
            return
        result = describe_result(call.name, text)
        last = self.messages[-1]
        # To a template that knows no tools, results are one user message.
        if last.role == "user":
            self.messages[-1] = replace(last, content=f"{last.content}\n{result}")
        else:
            self.messages.append(Message("user", result))


def _text_of(message: ChatMessage, place: str) -> str:
    match message.content:
        case None:
            if message.role == "assistant" and (message.tool_calls or message.refusal):
                return message.refusal or ""
            raise bad_request(f"{place}: content is missing", f"{place}.content")
        case str() as text:
            return text
        case parts:
            texts: list[str] = []
            for idx, part in enumerate(parts):
                told = {"text": part.text, "refusal": part.refusal}.get(part.type)
                if told is None:
                    raise bad_request(
                        f"{place}.content[{idx}]: a part of type {part.type!r} without text, and "
                        "this model reads text only",
                        f"{place}.content",
                    )
                texts.append(told)
            return "".join(texts)
