"""The tokenizer, template and limits of a model, without its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.engine.models.config import read_model_config
from flowforge.engine.prompt_logits import num_kept_at_least
from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.messages import Message
from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.planning.prefixes import Recomputation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flowforge.planning.prompts import Turn


class ModelText:
    """`Tokenizing` for the built-in engine; imports no torch."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, context_len: int) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._context_len = context_len
        # The engine samples from the logits behind the last token, and keeps those of some prompts.
        num_kept = num_kept_at_least(tokenizer.vocab_size)
        self._recomputation = Recomputation(num_tokens=1, num_kept_prompts=num_kept)

    @classmethod
    def in_directory(cls, directory: Path, context_len: int | None = None) -> ModelText:
        """Read what a model directory says. context_len: instead of its own. Raises EngineError."""
        tokenizer = Tokenizer.from_directory(directory)
        template = ChatTemplate.from_directory(directory, tokenizer)
        if context_len is None:
            context_len = read_model_config(directory).max_context_len
        return cls(tokenizer, template, context_len)

    @property
    def context_len(self) -> int:
        """See `Tokenizing`."""
        return self._context_len

    @property
    def recomputation(self) -> Recomputation:
        """See `Tokenizing`."""
        return self._recomputation

    def encode(self, text: str) -> list[int]:
        """See `Tokenizing.encode`."""
        return self._tokenizer.encode(text)

    def prompt(self, turns: Sequence[Turn]) -> list[int]:
        """See `Tokenizing.prompt`."""
        return self._template.render(_messages(turns))

    def until_content(self, turns: Sequence[Turn]) -> list[int]:
        """See `Tokenizing.until_content`."""
        return self._template.render(_messages(turns), continue_final=True)

    def closes_turn(self, token_id: int) -> bool:
        """See `Tokenizing.closes_turn`."""
        return token_id in self._tokenizer.eos_ids


def _messages(turns: Sequence[Turn]) -> list[Message]:
    return [Message(role, text) for role, text in turns]
