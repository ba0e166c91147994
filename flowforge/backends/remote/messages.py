"""A conversation as a chat server is sent it: messages that only ever grow at their end.

Forks send the same messages again, byte for byte, and behind them their own: that is what prefix
caches of servers find.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.backends.protocol import JsonValue, ToolOffer
    from flowforge.grammars.tool_formats import ToolCall, ToolDefinition

Message = dict[str, "JsonValue"]


@dataclass(frozen=True, slots=True)
class ChatHistory:
    """Messages so far. tools: all that were ever offered. call_ids: of the last turn's calls.

    num_calls: of all turns, by which ids are made where a model gave none.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[ToolDefinition, ...] = ()
    call_ids: tuple[str, ...] = ()
    num_calls: int = 0

    def with_text(self, role: str, text: str) -> ChatHistory:
        """One more turn of plain text."""
        message: Message = {"role": role, "content": text}
        return replace(self, messages=(*self.messages, message), call_ids=())

    def with_tools(self, offer: ToolOffer | None) -> ChatHistory:
        """The tools of an offer beside those before, which stay: a prompt shows them all."""
        if offer is None:
            return self
        known = {tool.name for tool in self.tools}
        new = tuple(tool for tool in offer.tools if tool.name not in known)
        return replace(self, tools=(*self.tools, *new)) if new else self

    def with_answer(self, text: str, calls: tuple[ToolCall, ...]) -> ChatHistory:
        """The turn that the model wrote."""
        if not calls:
            return self.with_text("assistant", text)
        ids = tuple(
            call.call_id or f"call_{self.num_calls + idx}" for idx, call in enumerate(calls)
        )
        told: list[JsonValue] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": _json(dict(call.arguments))},
            }
            for call_id, call in zip(ids, calls, strict=True)
        ]
        # Null, which OpenAI writes here, some servers refuse.
        message: Message = {"role": "assistant", "content": text, "tool_calls": told}
        return replace(
            self,
            messages=(*self.messages, message),
            call_ids=ids,
            num_calls=self.num_calls + len(ids),
        )

    def with_results(self, results: Sequence[JsonValue]) -> ChatHistory:
        """The results of the last turn's calls. Raises ValueError for another number of them."""
        if len(results) != len(self.call_ids):
            raise ValueError(f"expected {len(self.call_ids)} results, got {len(results)}")
        told: list[Message] = [
            {
                "role": "tool",
                "tool_call_id": call_id,
                "content": result if isinstance(result, str) else _json(result),
            }
            for call_id, result in zip(self.call_ids, results, strict=True)
        ]
        return replace(self, messages=(*self.messages, *told), call_ids=())


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)
