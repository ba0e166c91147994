"""What the engine asks of whoever guesses tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

HistoryKey: TypeAlias = "Hashable"
"""Texts that are like each other have equal ones: what one said, another may say again."""


class Drafter(Protocol):
    """Guesses. Owned by an engine, called on its thread only; it changes no result."""

    def begin(self, tokens: Sequence[int], key: HistoryKey | None) -> object:
        """A text begins to be written behind these tokens; what stands for it from now on."""
        ...

    def propose(self, texts: Sequence[tuple[object, Sequence[int], int]]) -> list[list[int]]:
        """Guess what each text says next: what `begin` gave, all its tokens so far, the most.

        A text's tokens only ever grow. An empty guess is a good answer where nothing is likely.
        """
        ...

    def learn(self, key: HistoryKey, output: Sequence[int]) -> None:
        """A text of this kind has said this, and others of its kind may."""
        ...

    def end(self, text: object) -> None:
        """Nothing more is asked of what `begin` gave."""
        ...
