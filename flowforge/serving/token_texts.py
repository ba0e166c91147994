"""Tokens as clients see them: texts, bytes and log probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.engine.sampling import TokenLogprobs
    from flowforge.engine.text.tokenizer import Tokenizer

_LEAST = -9999.0
"""What the API has for a token that cannot be: JSON knows no infinity."""


class TokenTexts:
    """Tells tokens of one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def text(self, token_id: int) -> str:
        """A token's text; half a character is U+FFFD."""
        return self._bytes(token_id).decode("utf-8", "replace")

    def chat_entries(self, tokens: Iterable[TokenLogprobs]) -> list[dict[str, Any]]:
        """As chats have them: one an output token, each with the likeliest at its place."""
        return [
            {
                **self._entry(one.token_id, one.logprob),
                "top_logprobs": [self._entry(*candidate) for candidate in one.top],
            }
            for one in tokens
        ]

    def completion_entries(
        self, tokens: Sequence[TokenLogprobs | int], first_offset: int
    ) -> dict[str, Any]:
        """As completions have them: lists of equal length; a bare id has no log probability."""
        offsets: list[int] = []
        texts: list[str] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offset = first_offset
        for one in tokens:
            text = self.text(one if isinstance(one, int) else one.token_id)
            offsets.append(offset)
            texts.append(text)
            offset += len(text)
            if isinstance(one, int):
                logprobs.append(None)
                tops.append(None)
            else:
                logprobs.append(_finite(one.logprob))
                # The likeliest first: of two tokens of one text, as halves of characters, that one.
                tops.append({self.text(i): _finite(p) for i, p in reversed(one.top)})
        return {
            "text_offset": offsets,
            "token_logprobs": logprobs,
            "tokens": texts,
            "top_logprobs": tops,
        }

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled = self._bytes(token_id)
        text = spelled.decode("utf-8", "replace")
        return {"token": text, "logprob": _finite(logprob), "bytes": [*spelled]}

    def _bytes(self, token_id: int) -> bytes:
        return self._tokenizer.token_bytes(token_id, skip_special=False)


def _finite(logprob: float) -> float:
    return max(_LEAST, logprob)
