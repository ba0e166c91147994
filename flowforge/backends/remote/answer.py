"""One streamed answer of a chat server, put together from its chunks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flowforge.backends.protocol import TextDelta, Usage
from flowforge.errors import EngineError
from flowforge.grammars.tool_formats import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.backends.protocol import FinishReason

_THOUGHTS = ("reasoning_content", "reasoning")
"""How servers call what a model thinks before its answer."""


@dataclass(slots=True)
class _PartialCall:
    name: str = ""
    arguments: str = ""
    call_id: str | None = None


class RemoteAnswer:
    """Takes chunks. by: the model, for messages. num_chunks: that had anything of the answer.

    text: of the answer so far. finish_reason: the server's word, once it is there. logprobs: of the
    answer's tokens, as far as they were told.
    """

    def __init__(self, by: str) -> None:
        self.text: str = ""
        self.num_chunks: int = 0
        self.finish_reason: str | None = None
        self.logprobs: list[float] = []
        self._by = by
        self._calls: dict[int, _PartialCall] = {}
        self._told: Mapping[str, Any] | None = None

    def deltas(self, chunk: Mapping[str, Any]) -> Iterator[TextDelta]:
        """Take a chunk in; the text in it, thoughts apart. Raises EngineError EN408, EN409."""
        if isinstance(chunk.get("usage"), dict):
            self._told = chunk["usage"]
        choices = chunk.get("choices") or ()
        try:
            for choice in choices:
                yield from self._take(choice)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise not_understood(self._by, json.dumps(chunk, default=str)) from error

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of a whole answer. Raises EngineError EN406 for arguments that are no JSON."""
        return tuple(self._call(partial) for _, partial in sorted(self._calls.items()))

    @property
    def has_calls(self) -> bool:
        """Whether it calls anything."""
        return bool(self._calls)

    def ending(self) -> FinishReason:
        """Why it ended. Raises EngineError EN408 for an answer that did not come to its end."""
        match self.finish_reason:
            case "length":
                return "length"
            case "content_filter":
                raise broken_off(self._by, "a content filter of the server ended it")
            case None:
                raise broken_off(self._by, "the server closed the connection")
            case _:
                return "stop"

    def usage(self, ttft_s: float, total_s: float) -> Usage:
        """What it cost as the server tells it; without its word, a token a chunk."""
        told = self._told or {}
        prompt = _count(told.get("prompt_tokens"))
        details = told.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
        cached = min(prompt, cached or _count(told.get("prompt_cache_hit_tokens")))
        return Usage(
            prompt_tokens=prompt,
            prefilled_tokens=prompt - cached,
            reused_tokens=cached,
            generated_tokens=_count(told.get("completion_tokens")) or self.num_chunks,
            ttft_s=ttft_s,
            total_s=total_s,
        )

    def _take(self, choice: Mapping[str, Any]) -> Iterator[TextDelta]:
        # A server that does not stream has the message whole.
        delta = cast("Mapping[str, Any]", choice.get("delta") or choice.get("message") or {})
        thought = next((delta[name] for name in _THOUGHTS if delta.get(name)), None)
        content, calls = delta.get("content"), delta.get("tool_calls")
        if thought or content or calls:
            self.num_chunks += 1
        if thought:
            yield TextDelta(str(thought), 1, is_thought=True)
        if content:
            self.text += content
            yield TextDelta(content, 1)
        for idx, call in enumerate(calls or ()):
            self._take_call(call.get("index", idx), call)
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            told = cast("dict[str, Any]", logprobs).get("content") or ()
            self.logprobs += [float(one["logprob"]) for one in told]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_call(self, idx: int, told: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(idx, _PartialCall())
        function = told.get("function") or {}
        call.call_id = told.get("id") or call.call_id
        name = function.get("name") or ""
        # Some servers say all of it again with every piece.
        call.name += "" if name == call.name else name
        arguments = function.get("arguments")
        call.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments or {})

    def _call(self, partial: _PartialCall) -> ToolCall:
        try:
            arguments = json.loads(partial.arguments or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            shown = partial.arguments[:80]
            raise EngineError(
                "EN406",
                f"{self._by} called {partial.name!r} with arguments that are no JSON object: "
                f"{shown!r}",
                help="let the step try again (retry: 3)",
            )
        return ToolCall(partial.name, arguments, partial.call_id)


def broken_off(by: str, reason: str) -> EngineError:
    """The error of an answer without an end."""
    return EngineError(
        "EN408",
        f"the answer of {by} broke off: {reason}",
        help="let the step try again (retry: 3)",
    )


def not_understood(by: str, told: str) -> EngineError:
    """The error of what is not of the API."""
    return EngineError(
        "EN409",
        f"{by} answered with what is no chat completion: {told[:200]!r}",
        help="check that its url is that of an OpenAI-compatible server, up to and with /v1",
    )


def _count(told: object) -> int:
    return told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else 0
