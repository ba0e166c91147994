"""A trie of token ids: which positions of which prompts exist, each counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrefixTrie:
    """Every distinct prefix ever added is one node; adding costs one lookup per token."""

    def __init__(self) -> None:
        # One flat dictionary: (node, token) to node. A dictionary per node costs ten times that.
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        """Number of nodes, the root aside."""
        return len(self._children)

    def add(self, token_ids: Sequence[int]) -> int:
        """Add a path from the root; returns how many of its nodes are new."""
        num_before = len(self._children)
        node = 0
        for token_id in token_ids:
            node = self._children.setdefault((node, token_id), len(self._children) + 1)
        return len(self._children) - num_before
