"""Guesses from texts that are there: the text itself, and what texts like it have said before.

What a text repeats of itself is prompt lookup (Saxena 2023); what it repeats of others of its kind
follows SuffixDecoding (Oliaro et al. 2024), with an index of runs instead of a suffix tree: it
finds the last place where the same run stood, and stays on it for as long as the texts agree.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from flowforge.engine.speculation.token_index import RUN_LEN, Cursor, TokenIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.speculation.drafter import HistoryKey

_BETWEEN = -1
"""No token: texts of a history do not run into each other."""

_MOST_OF_A_KEY = 8_192
_MOST_IN_ALL = 131_072
"""Tokens that are remembered; an index takes some 200 bytes for each."""

_NUM_FOLLOWED = 64
"""How far from its end a prompt is followed, token by token: a guess needs no longer agreement, and
all before it is indexed at once. The engine's thread does it, while other texts wait."""


@dataclass(eq=False, slots=True)
class _Text:
    """own: the text itself. cursors: through it and through the history of its kind."""

    own: TokenIndex
    cursors: tuple[Cursor, ...]


class LookupDrafter:
    """See the module. Guesses cost a look into a table for each token that was written."""

    def __init__(
        self, most_of_a_key: int = _MOST_OF_A_KEY, most_in_all: int = _MOST_IN_ALL
    ) -> None:
        self._most_of_a_key = most_of_a_key
        self._most_in_all = most_in_all
        self._histories: OrderedDict[HistoryKey, TokenIndex] = OrderedDict()
        self._num_tokens = 0

    @property
    def num_remembered(self) -> int:
        """Tokens of other texts."""
        return self._num_tokens

    def begin(self, tokens: Sequence[int], key: HistoryKey | None) -> object:
        """See `Drafter`."""
        own = TokenIndex()
        cursors = [Cursor(own)]
        history = None if key is None else self._histories.get(key)
        if history is not None:
            cursors.append(Cursor(history))
        own.extend(tokens[: max(0, len(tokens) - _NUM_FOLLOWED)])
        text = _Text(own, tuple(cursors))
        self._read(text, tokens)
        return text

    def propose(self, texts: Sequence[tuple[object, Sequence[int], int]]) -> list[list[int]]:
        """See `Drafter`."""
        return [self._guess(cast("_Text", text), tokens, most) for text, tokens, most in texts]

    def learn(self, key: HistoryKey, output: Sequence[int]) -> None:
        """See `Drafter`."""
        said = output[: self._most_of_a_key - 1]
        if len(said) < RUN_LEN:
            return
        history = self._histories.get(key)
        num_kept = 0 if history is None else len(history.tokens)
        if history is None or num_kept + len(said) >= self._most_of_a_key:
            # Begun anew: texts that are being written go on in the old one.
            self._num_tokens -= num_kept
            history = self._histories[key] = TokenIndex()
        history.extend((_BETWEEN, *said))
        self._num_tokens += len(said) + 1
        self._histories.move_to_end(key)
        while self._num_tokens > self._most_in_all and len(self._histories) > 1:
            _, oldest = self._histories.popitem(last=False)
            self._num_tokens -= len(oldest.tokens)

    def end(self, text: object) -> None:
        """See `Drafter`; nothing is kept outside of the text."""

    def _guess(self, text: _Text, tokens: Sequence[int], most: int) -> list[int]:
        self._read(text, tokens)
        best = max(text.cursors, key=lambda cursor: cursor.num_alike)
        guess = best.following(most)
        return guess[: guess.index(_BETWEEN)] if _BETWEEN in guess else guess

    def _read(self, text: _Text, tokens: Sequence[int]) -> None:
        for position in range(len(text.own.tokens), len(tokens)):
            last = tokens[max(0, position + 1 - RUN_LEN) : position + 1]
            for cursor in text.cursors:
                cursor.move(last)
            text.own.append(tokens[position])
