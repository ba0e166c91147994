"""What a grammar's rules can reach, derive and be followed by: sets of symbols."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lark.grammar import Rule

Alternative = tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """The rules that matter: reachable from the start, and able to end.

    alternatives: for each rule the symbols of its alternatives. terminals: names of those used.
    """

    start: str
    alternatives: Mapping[str, Sequence[Alternative]]
    terminals: frozenset[str]

    @classmethod
    def of(cls, rules: Iterable[Rule], start: str) -> Rules:
        """The rules of lark's; alternatives that never end are left out with what only they use."""
        all_rules: dict[str, list[Alternative]] = {}
        terminals: set[str] = set()
        for rule in rules:
            symbols = tuple(str(symbol.name) for symbol in rule.expansion)
            all_rules.setdefault(str(rule.origin.name), []).append(symbols)
            terminals.update(symbol.name for symbol in rule.expansion if symbol.is_term)
        ending = _derived(all_rules, terminals)
        kept = {
            name: [one for one in alternatives if all(symbol in ending for symbol in one)]
            for name, alternatives in all_rules.items()
        }
        reached = _reachable(kept, start)
        used = {name: kept[name] for name in all_rules if name in reached and kept[name]}
        return cls(start, used, frozenset(terminals & reached))

    @property
    def can_end(self) -> bool:
        """Whether any text derives from the start."""
        return self.start in self.alternatives

    @cached_property
    def following(self) -> Mapping[str, frozenset[str]]:
        """For each symbol the terminals that may come next to it in some text."""
        first = self._first()
        following: dict[str, set[str]] = {}
        while True:
            before = sum(map(len, following.values()))
            for name, alternatives in self.alternatives.items():
                for symbols in alternatives:
                    after = set(following.get(name, ()))
                    for symbol in reversed(symbols):
                        following.setdefault(symbol, set()).update(after)
                        if symbol in self.terminals:
                            after = {symbol}
                        else:
                            starts = first[symbol]
                            after = starts | after if symbol in self._nullable else set(starts)
            if sum(map(len, following.values())) == before:
                return {symbol: frozenset(names) for symbol, names in following.items()}

    @cached_property
    def _nullable(self) -> frozenset[str]:
        return frozenset(_derived(self.alternatives, ()))

    def _first(self) -> dict[str, set[str]]:
        first: dict[str, set[str]] = {name: set() for name in self.alternatives}
        while True:
            before = sum(map(len, first.values()))
            for name, alternatives in self.alternatives.items():
                for symbols in alternatives:
                    for symbol in symbols:
                        if symbol in self.terminals:
                            first[name].add(symbol)
                            break
                        first[name] |= first[symbol]
                        if symbol not in self._nullable:
                            break
            if sum(map(len, first.values())) == before:
                return first


def _derived(rules: Mapping[str, Sequence[Alternative]], known: Iterable[str]) -> set[str]:
    """The known symbols, and the rules that have an alternative of such symbols only."""
    uses: dict[str, list[tuple[str, int]]] = {}
    missing: list[int] = []
    found: set[str] = set()
    todo = [*known]
    for name, alternatives in rules.items():
        for symbols in alternatives:
            for symbol in symbols:
                uses.setdefault(symbol, []).append((name, len(missing)))
            missing.append(len(symbols))
            if not symbols:
                todo.append(name)
    while todo:
        symbol = todo.pop()
        if symbol in found:
            continue
        found.add(symbol)
        for name, idx in uses.get(symbol, ()):
            missing[idx] -= 1
            if not missing[idx]:
                todo.append(name)
    return found


def _reachable(rules: Mapping[str, Sequence[Alternative]], start: str) -> set[str]:
    reached, todo = {start}, [start]
    while todo:
        for symbols in rules.get(todo.pop(), ()):
            for symbol in symbols:
                if symbol not in reached:
                    reached.add(symbol)
                    todo.append(symbol)
    return reached
