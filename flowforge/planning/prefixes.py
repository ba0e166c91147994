"""Which prefixes will have been computed: one trie of what is certain, one of what is possible.

A prompt is a row of elements: token ids, and `Opaque` runs of tokens that only the run gives. Two
runs of one key are the same tokens; two of different keys may still turn out the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from flowforge.planning.quantity import Quantity, exactly, total

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Opaque:
    """A run of tokens that is not known before the run. key: what it is the text of."""

    key: str
    tokens: Quantity


Element: TypeAlias = "int | Opaque"


def length_of(elements: Sequence[Element]) -> Quantity:
    """Tokens of a row of elements."""
    opaque = [element.tokens for element in elements if isinstance(element, Opaque)]
    return exactly(len(elements) - len(opaque)) + total(opaque)


@dataclass(frozen=True, slots=True)
class Recomputation:
    """What a backend computes again of a prompt whose KV is all there, for the logits behind it.

    num_tokens: at the prompt's end. num_kept_prompts: of so many prompts the logits are kept, and
    nothing of an equal one is computed.
    """

    num_tokens: int
    num_kept_prompts: int


@dataclass(frozen=True, slots=True)
class Charge:
    """new: tokens of a prompt that are to be computed. source: whose KV the others are, if any."""

    new: Quantity
    reused: Quantity
    source: str | None


class PrefixBook:
    """What prompts and answers leave behind; the same tokens are computed once.

    Within `mark` and `forget_since`, prefixes are added that may never exist: afterwards they are
    possible and not certain.
    """

    def __init__(self, rule: Recomputation) -> None:
        self._rule = rule
        self._certain = _Trie()
        self._possible = _Trie()
        self._asked: dict[tuple[Element, ...], None] = {}
        self._perhaps_asked: set[tuple[Element, ...]] = set()

    def charge(self, prompt: tuple[Element, ...]) -> Charge:
        """What a prompt costs now. Adds nothing."""
        known, _, source = self._certain.walk(prompt)
        most = length_of(prompt[known:]).most
        maybe_known, is_open, _ = self._possible.walk(prompt)
        least = 0 if is_open else length_of(prompt[maybe_known:]).least
        may_be_kept = is_open or prompt in self._perhaps_asked
        is_kept = prompt in self._asked and len(self._asked) <= self._rule.num_kept_prompts
        num_recomputed = 0 if is_kept else self._rule.num_tokens
        new = Quantity(
            max(least, 0 if may_be_kept else num_recomputed),
            None if most is None else max(most, num_recomputed),
        )
        whole = length_of(prompt)
        if new.is_exact and whole.is_exact:
            reused = exactly(whole.least - new.least)
        else:
            # What is certainly known is reused, but for tokens that are computed again.
            num_lost = num_recomputed if known == len(prompt) else 0
            shared = length_of(prompt[:known]).least - num_lost
            most_reused = None if whole.most is None else max(0, whole.most - new.least)
            reused = Quantity(max(0, shared), most_reused)
        return Charge(new, reused, source)

    def add(self, prompt: tuple[Element, ...], written: tuple[Element, ...], owner: str) -> None:
        """A prompt and what was written after it have KV now, through the step at `owner`."""
        self._certain.add((*prompt, *written), owner)
        self._possible.add((*prompt, *written), owner)
        self._asked[prompt] = None
        self._perhaps_asked.add(prompt)

    def mark(self) -> tuple[int, int]:
        """Where to go back to."""
        return self._certain.num_nodes, len(self._asked)

    def forget_since(self, mark: tuple[int, int]) -> None:
        """What was added since is no longer certain."""
        num_nodes, num_asked = mark
        self._certain.cut(num_nodes)
        while len(self._asked) > num_asked:
            self._asked.popitem()


class _Trie:
    def __init__(self) -> None:
        # Nodes are numbered as they come, so that the last ones can be taken back.
        self._children: dict[tuple[int, int | str], int] = {}
        self._owners: list[str] = [""]
        self._opaque: dict[int, set[str]] = {}
        self._has_children: set[int] = set()

    @property
    def num_nodes(self) -> int:
        return len(self._children)

    def walk(self, elements: Sequence[Element]) -> tuple[int, bool, str | None]:
        """How many elements are there, whether more of them may be, and who put the last there."""
        node = 0
        is_open = False
        for idx, element in enumerate(elements):
            edge = _edge(element)
            is_open = is_open or bool(self._opaque.get(node, _NO_KEYS) - {edge})
            child = self._children.get((node, edge))
            if child is None:
                is_open = is_open or (isinstance(edge, str) and node in self._has_children)
                return idx, is_open, self._owners[node] or None
            node = child
        return len(elements), is_open, self._owners[node] or None

    def add(self, elements: Sequence[Element], owner: str) -> None:
        node = 0
        for element in elements:
            edge = _edge(element)
            child = self._children.get((node, edge))
            if child is None:
                child = len(self._children) + 1
                self._children[node, edge] = child
                self._owners.append(owner)
                self._has_children.add(node)
                if isinstance(edge, str):
                    self._opaque.setdefault(node, set()).add(edge)
            node = child

    def cut(self, num_nodes: int) -> None:
        """Take back every node beyond the first so many."""
        while len(self._children) > num_nodes:
            self._children.popitem()
            self._owners.pop()


_NO_KEYS: frozenset[str] = frozenset()


def _edge(element: Element) -> int | str:
    return element if isinstance(element, int) else element.key
