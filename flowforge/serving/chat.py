"""Chat completions as clients get them: whole, or chunk by chunk."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowforge.serving.generation import End, Piece

if TYPE_CHECKING:
    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.serving.envelope import Chunks, Envelope
    from flowforge.serving.generation import CallWritten, FinishReason, Generation
    from flowforge.serving.token_texts import TokenTexts


@dataclass(slots=True)
class _Choice:
    """What one choice has written so far."""

    texts: list[str] = field(default_factory=list[str])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    logprobs: list[TokenLogprobs] = field(default_factory=list["TokenLogprobs"])
    reason: FinishReason = "stop"


class ChatAnswer:
    """Gathers a whole chat completion. has_logprobs: whether they were asked for."""

    def __init__(
        self, envelope: Envelope, num_choices: int, texts: TokenTexts, *, has_logprobs: bool
    ) -> None:
        self._envelope = envelope
        self._choices = [_Choice() for _ in range(num_choices)]
        self._texts = texts
        self._has_logprobs = has_logprobs

    async def take(self, told: Piece | End) -> None:
        """What a choice wrote."""
        choice = self._choices[told.choice]
        if isinstance(told, End):
            choice.reason = told.reason
            return
        choice.texts.append(told.text)
        choice.calls += map(call_as_json, told.calls)
        choice.logprobs += told.logprobs

    def body(self, generation: Generation, **fields: Any) -> dict[str, Any]:
        """The whole."""
        choices = [self._told(idx, choice) for idx, choice in enumerate(self._choices)]
        usage = generation.cost.as_usage()
        return self._envelope.around("chat.completion", choices, usage=usage, **fields)

    def _told(self, idx: int, choice: _Choice) -> dict[str, Any]:
        text = "".join(choice.texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not choice.calls else None,
            "refusal": None,
        }
        if choice.calls:
            message["tool_calls"] = choice.calls
        logprobs = None
        if self._has_logprobs:
            logprobs = {"content": self._texts.chat_entries(choice.logprobs), "refusal": None}
        return {
            "index": idx,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": choice.reason,
        }


class ChatChunks:
    """Writes a chat completion as a stream of chunks, but for its end."""

    def __init__(self, chunks: Chunks, texts: TokenTexts, *, has_logprobs: bool) -> None:
        self._chunks = chunks
        self._texts = texts
        self._has_logprobs = has_logprobs

    async def begin(self, num_choices: int) -> None:
        """Say whose turn it is, in each choice."""
        for choice in range(num_choices):
            await self._send(choice, {"role": "assistant", "content": "", "refusal": None})

    async def take(self, told: Piece | End) -> None:
        """What a choice wrote, at once."""
        if isinstance(told, End):
            await self._send(told.choice, {}, reason=told.reason)
            return
        if told.text or told.logprobs:
            logprobs = None
            if self._has_logprobs:
                logprobs = {"content": self._texts.chat_entries(told.logprobs), "refusal": None}
            await self._send(told.choice, {"content": told.text}, logprobs=logprobs)
        for call in told.calls:
            # The id and the name once; what clients find in two deltas they join.
            whole = call_as_json(call)
            arguments = whole["function"]["arguments"]
            head = {**whole, "function": {**whole["function"], "arguments": ""}}
            rest = {"index": call.idx, "function": {"arguments": arguments}}
            await self._send(told.choice, {"tool_calls": [{"index": call.idx, **head}]})
            await self._send(told.choice, {"tool_calls": [rest]})

    async def _send(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        reason: FinishReason | None = None,
    ) -> None:
        told = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        await self._chunks.send(told)


def call_as_json(call: CallWritten) -> dict[str, Any]:
    """A call as messages have it."""
    arguments = json.dumps(call.call.arguments, ensure_ascii=False)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.call.name, "arguments": arguments},
    }
