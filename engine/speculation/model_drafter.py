"""Guesses by a second, smaller model that speaks the same tokens (Leviathan et al. 2023).

The small model is an engine core of its own, stepped between two steps of the large one: texts are
its sequences, guesses its greedy generations, and what was wrong is cut off again. All texts that
want guesses are one batch of it.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, cast

from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.kv.tokens import common_prefix_len
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, SequenceId, TokensArrived

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.core import EngineCore
    from flowforge.engine.sequence import Update
    from flowforge.engine.speculation.drafter import HistoryKey

_SPACE = Namespace("", "draft")


class _Text:
    """A sequence of the small model. tokens: those that it has."""

    def __init__(self, sequence_id: SequenceId) -> None:
        self.id = sequence_id
        self.tokens: list[int] = []
        self.guess: list[int] = []

    def put(self, update: Update) -> None:
        """Of its generation; see `UpdateSink`."""
        if isinstance(update, TokensArrived):
            self.guess += update.token_ids


class ModelDrafter:
    """Owns the small model's core, which nobody else steps. Texts do not share its cache's salt."""

    def __init__(self, core: EngineCore) -> None:
        """core: its token ids mean what those of the large model mean, up to its vocabulary."""
        self._core = core
        self._ids = count(1)

    def begin(self, tokens: Sequence[int], key: HistoryKey | None) -> object:
        """See `Drafter`."""
        del tokens, key
        text = _Text(SequenceId(next(self._ids)))
        self._core.open(text.id, _SPACE)
        return text

    def propose(self, texts: Sequence[tuple[object, Sequence[int], int]]) -> list[list[int]]:
        """See `Drafter`."""
        asked = [(cast("_Text", text), tokens, most) for text, tokens, most in texts]
        for text, tokens, most in asked:
            self._begin_guess(text, list(tokens), most)
        while self._core.has_work:
            self._core.step()
        for text, _, _ in asked:
            text.tokens += text.guess
        return [[*text.guess] for text, _, _ in asked]

    def learn(self, key: HistoryKey, output: Sequence[int]) -> None:
        """See `Drafter`; a model does not learn while it runs."""

    def end(self, text: object) -> None:
        """See `Drafter`."""
        self._core.close(cast("_Text", text).id)

    def _begin_guess(self, text: _Text, tokens: list[int], most: int) -> None:
        text.guess = []
        num_right = common_prefix_len(text.tokens, tokens)
        self._core.truncate(text.id, num_right)
        text.tokens = tokens
        limits = self._core.model
        if max(tokens, default=0) >= limits.vocab_size or len(tokens) + most > self._core.capacity:
            # It cannot read this text: no guess, and the large model writes alone.
            text.tokens = tokens[:num_right]
            return
        self._core.append(text.id, tokens[num_right:])
        request = GenerationRequest(SamplingParams(max_tokens=most, temperature=0))
        self._core.generate(text.id, request, text)
