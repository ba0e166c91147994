"""A drafter for `history_model` that is right and wrong at random."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from history_model import VOCAB_SIZE, next_token

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class HistoryDrafter:
    """See `Drafter`. share_right: of its guesses; a wrong one is any token.

    num_open: texts that were begun and have not ended.
    """

    def __init__(self, seed: int = 0, share_right: float = 0.7) -> None:
        self._random = random.Random(seed)
        self._share_right = share_right
        self.num_open = 0

    def begin(self, tokens: Sequence[int], key: Hashable | None) -> object:
        """See `Drafter`."""
        del tokens, key
        self.num_open += 1
        return object()

    def propose(self, texts: Sequence[tuple[object, Sequence[int], int]]) -> list[list[int]]:
        """See `Drafter`."""
        return [self._guess(tokens, most) for _, tokens, most in texts]

    def learn(self, key: Hashable, output: Sequence[int]) -> None:
        """See `Drafter`; it learns nothing."""

    def end(self, text: object) -> None:
        """See `Drafter`."""
        del text
        self.num_open -= 1

    def _guess(self, tokens: Sequence[int], most: int) -> list[int]:
        guess: list[int] = []
        while len(guess) < most:
            right = next_token((*tokens, *guess))
            is_right = self._random.random() < self._share_right
            guess.append(right if is_right else self._random.randrange(VOCAB_SIZE))
        return guess
