"""What a conversation is made of: messages, tool calls in them, and the tools on offer.

All texts here are values. Where a template prints them they stay text, whatever they say.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

Role = Literal["system", "user", "assistant", "tool"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as a template shows it to the model.

    parameters: a JSON Schema of an object; its values are JSON values.
    """

    name: str
    description: str
    parameters: Mapping[str, object]

    @classmethod
    def from_openai(cls, tool: Mapping[str, object]) -> ToolSchema:
        """Read a tool of the chat completions API. Raises EngineError EN307 for another shape."""
        function = _object_of(tool.get("function"), "a tool's function")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        return cls(
            _name_of(function),
            str(function.get("description") or ""),
            _object_of(parameters, "a tool's parameters"),
        )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the assistant wrote. arguments: JSON values. id: what its result refers to."""

    name: str
    arguments: Mapping[str, object]
    id: str = ""

    @classmethod
    def from_openai(cls, call: Mapping[str, object]) -> ToolCall:
        """Read a call of the chat completions API, arguments as JSON text or as an object.

        Raises EngineError EN307 for another shape.
        """
        function = _object_of(call.get("function"), "a tool call's function")
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = cast("object", json.loads(arguments))
            except ValueError as error:
                raise bad_message(f"tool call arguments are no JSON: {error}") from error
        found_id = call.get("id")
        return cls(
            _name_of(function),
            _object_of(arguments, "a tool call's arguments"),
            found_id if isinstance(found_id, str) else "",
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `content` is text: it never becomes a control token.

    tool_calls: what an assistant message calls, after its content. name, tool_call_id: which tool
    and which call a tool message is the result of, for templates that say it.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None

    @classmethod
    def from_openai(cls, message: Mapping[str, object]) -> Message:
        """Read a message of the chat completions API; text parts are joined, null is "".

        Raises EngineError EN307 for another role, a content that is not text, or a call that is
        none.
        """
        spoken = message.get("role")
        role = _ROLES.get(spoken) if isinstance(spoken, str) else None
        if role is None:
            raise bad_message(f"role {spoken!r}, expected one of {list(_ROLES)}")
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise bad_message(f"tool_calls is a {type(calls).__name__}, expected a list")
        name, call_id = message.get("name"), message.get("tool_call_id")
        return cls(
            role,
            _text_of(message.get("content")),
            tuple(
                ToolCall.from_openai(_object_of(call, "a tool call"))
                for call in cast("list[object]", calls)
            ),
            name if isinstance(name, str) else None,
            call_id if isinstance(call_id, str) else None,
        )


def message_view(message: Message) -> dict[str, object]:
    """A message as templates read it. Keys that say nothing are absent: templates test for them."""
    view: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        view["tool_calls"] = [_call_view(call) for call in message.tool_calls]
    if message.name is not None:
        view["name"] = message.name
    if message.tool_call_id is not None:
        view["tool_call_id"] = message.tool_call_id
    return view


def tool_view(tool: ToolSchema) -> dict[str, object]:
    """A tool as templates read it."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }


def bad_message(reason: str) -> EngineError:
    """The error for a conversation that is none."""
    return EngineError(
        "EN307", reason, help="a message is a role and a text, and may hold tool calls"
    )


def _call_view(call: ToolCall) -> dict[str, object]:
    view: dict[str, object] = {
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    if call.id:
        view["id"] = call.id
    return view


def _name_of(function: Mapping[str, object]) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise bad_message(f"a tool's name is {name!r}, expected a text that is not empty")
    return name


def _object_of(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise bad_message(f"{what} is a {type(value).__name__}, expected an object")
    return cast("dict[str, object]", value)


def _text_of(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part) for part in cast("list[object]", content))
    raise bad_message(f"content is a {type(content).__name__}, expected text or text parts")


def _part_text(part: object) -> str:
    fields = cast("dict[str, object]", part) if isinstance(part, dict) else {}
    text = fields.get("text")
    if fields.get("type") == "text" and isinstance(text, str):
        return text
    kind = fields.get("type", type(part).__name__)
    raise bad_message(f"content part of type {kind!r}, expected 'text'")
