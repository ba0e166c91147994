"""Where a run of tokens was seen before, and what followed it there."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

RUN_LEN = 3
"""Tokens that must agree before what followed them is worth a guess."""


class TokenIndex:
    """A text that grows, with the last place of each run of `RUN_LEN` tokens. O(1) a token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}

    def append(self, token_id: int) -> None:
        """Add a token; the run that ends with it is found from now on."""
        self.tokens.append(token_id)
        if len(self.tokens) >= RUN_LEN:
            self._behind[tuple(self.tokens[-RUN_LEN:])] = len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """As `append` of each, in a fraction of the time."""
        first = max(0, len(self.tokens) - RUN_LEN + 1)
        self.tokens.extend(tokens)
        runs = zip(*(self.tokens[first + idx :] for idx in range(RUN_LEN)), strict=False)
        self._behind.update(zip(runs, itertools.count(first + RUN_LEN), strict=False))

    def find(self, run: Sequence[int]) -> int | None:
        """The place behind the last occurrence of a run of `RUN_LEN` tokens."""
        return self._behind.get(tuple(run))


class Cursor:
    """Follows a text through an index: for as long as both go on alike, it goes on with them.

    num_alike: tokens that agree up to here; the more, the likelier is what follows.
    """

    __slots__ = ("_index", "_place", "num_alike")

    def __init__(self, index: TokenIndex) -> None:
        self._index = index
        self._place: int | None = None
        self.num_alike = 0

    def move(self, last: Sequence[int]) -> None:
        """The text has one token more. last: its last tokens, `RUN_LEN` of them if it has so many.

        Call it before the token is added to the index, if that is an index of the same text.
        """
        tokens, place = self._index.tokens, self._place
        if place is not None and place < len(tokens) and tokens[place] == last[-1]:
            self._place = place + 1
            self.num_alike += 1
            return
        self._place = self._index.find(last) if len(last) == RUN_LEN else None
        self.num_alike = 0 if self._place is None else RUN_LEN

    def following(self, most: int) -> list[int]:
        """What followed where the cursor is, at most so many tokens."""
        if self._place is None:
            return []
        return self._index.tokens[self._place : self._place + most]
