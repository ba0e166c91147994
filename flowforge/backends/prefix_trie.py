"""A trie of token ids: which positions of which prompts exist, each counted once."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrefixTrie:
    """Every distinct prefix ever added is one position.

    Each is two bytes, or four beyond the id 65,535, but for where paths part.

    A run of ten thousand steps has millions of positions: a node for each would be most of the
    memory of such a run.
    """

    def __init__(self) -> None:
        self._root = _Node(array("H"))
        self._num_positions = 0

    def __len__(self) -> int:
        """Number of positions."""
        return self._num_positions

    def add(self, token_ids: Sequence[int]) -> int:
        """Add a path from the root; returns how many of its positions are new."""
        path = array("H" if max(token_ids, default=0) < 1 << 16 else "I", token_ids)
        node, start = self._root, 0
        while start < len(path):
            child = node.children.get(path[start])
            if child is None:
                node.children[path[start]] = _Node(path[start:])
                break
            num_same = _common(child.tokens, path, start)
            start += num_same
            if num_same < len(child.tokens):
                child.split(num_same)
            node = child
        num_new = len(path) - start
        self._num_positions += num_new
        return num_new


class _Node:
    """tokens: of the edge that leads here. children: by the first token of their edge."""

    __slots__ = ("children", "tokens")

    def __init__(self, tokens: array[int]) -> None:
        self.tokens = tokens
        self.children: dict[int, _Node] = {}

    def split(self, num_tokens: int) -> None:
        """Make a node behind the first `num_tokens` of the edge; this one."""
        rest = _Node(self.tokens[num_tokens:])
        rest.children = self.children
        self.tokens = self.tokens[:num_tokens]
        self.children = {rest.tokens[0]: rest}


def _common(edge: array[int], path: array[int], start: int) -> int:
    """How many tokens of an edge a path has from `start` on; the first is known to be the same."""
    most = min(len(edge), len(path) - start)
    if edge[:most] == path[start : start + most]:
        return most
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        if edge[low:middle] == path[start + low : start + middle]:
            low = middle
        else:
            high = middle
    return low
