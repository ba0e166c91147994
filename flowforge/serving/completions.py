"""Text completions as clients get them: whole, or chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowforge.serving.generation import Cost, End, Piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.serving.envelope import Chunks, Envelope
    from flowforge.serving.generation import FinishReason, Generation
    from flowforge.serving.token_texts import TokenTexts

KIND = "text_completion"


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that its completions begin with."""

    text: str
    ids: tuple[int, ...]


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list[str])
    logprobs: list[TokenLogprobs] = field(default_factory=list["TokenLogprobs"])
    reason: FinishReason = "length"


class CompletionAnswer:
    """Gathers the completions of several prompts, in their order.

    echoes: the prompts, where the texts are to begin with them. has_logprobs: whether they were
    asked for.
    """

    def __init__(
        self,
        envelope: Envelope,
        num_prompts: int,
        num_choices: int,
        texts: TokenTexts,
        *,
        echoes: Sequence[Echo] | None,
        has_logprobs: bool,
    ) -> None:
        self._envelope = envelope
        self._num_choices = num_choices
        self._choices = [_Choice() for _ in range(num_prompts * num_choices)]
        self._texts = texts
        self._echoes = echoes
        self._has_logprobs = has_logprobs

    async def take(self, prompt: int, told: Piece | End) -> None:
        """What a choice of a prompt wrote."""
        choice = self._choices[prompt * self._num_choices + told.choice]
        if isinstance(told, End):
            choice.reason = told.reason
            return
        choice.texts.append(told.text)
        choice.logprobs += told.logprobs

    def body(self, generations: Sequence[Generation], **fields: Any) -> dict[str, Any]:
        """The whole."""
        choices = [
            self._told(idx, choice, generations[idx // self._num_choices])
            for idx, choice in enumerate(self._choices)
        ]
        cost = sum((one.cost for one in generations), Cost())
        return self._envelope.around(KIND, choices, usage=cost.as_usage(), **fields)

    def _told(self, idx: int, choice: _Choice, generation: Generation) -> dict[str, Any]:
        echo = None if self._echoes is None else self._echoes[idx // self._num_choices]
        text = "".join(choice.texts)
        logprobs = None
        if self._has_logprobs:
            tokens: list[TokenLogprobs | int] = [*choice.logprobs]
            if echo is not None:
                # What a prompt begins with comes after nothing, and has no probability.
                tokens[:0] = [echo.ids[0], *generation.prompt_logprobs]
            logprobs = self._texts.completion_entries(tokens, 0)
        return {
            "index": idx,
            "text": text if echo is None else echo.text + text,
            "logprobs": logprobs,
            "finish_reason": choice.reason,
        }


class CompletionChunks:
    """Writes completions as a stream of chunks, but for its end."""

    def __init__(
        self, chunks: Chunks, num_choices: int, texts: TokenTexts, *, has_logprobs: bool
    ) -> None:
        self._chunks = chunks
        self._num_choices = num_choices
        self._texts = texts
        self._has_logprobs = has_logprobs
        self._offsets: dict[int, int] = {}

    async def echo(self, prompt: int, echo: Echo, generation: Generation) -> None:
        """Begin each choice of a prompt with it."""
        for choice in range(self._num_choices):
            idx = prompt * self._num_choices + choice
            tokens: list[TokenLogprobs | int] = []
            if self._has_logprobs:
                tokens = [echo.ids[0], *generation.prompt_logprobs]
            await self._send(idx, echo.text, tokens)

    async def take(self, prompt: int, told: Piece | End) -> None:
        """What a choice of a prompt wrote, at once."""
        idx = prompt * self._num_choices + told.choice
        if isinstance(told, End):
            await self._send(idx, "", (), told.reason)
        else:
            await self._send(idx, told.text, told.logprobs)

    async def _send(
        self,
        idx: int,
        text: str,
        tokens: Sequence[TokenLogprobs | int],
        reason: FinishReason | None = None,
    ) -> None:
        logprobs = None
        if self._has_logprobs and tokens:
            offset = self._offsets.get(idx, 0)
            logprobs = self._texts.completion_entries(tokens, offset)
            self._offsets[idx] = offset + sum(map(len, logprobs["tokens"]))
        told = {"index": idx, "text": text, "logprobs": logprobs, "finish_reason": reason}
        await self._chunks.send(told)
