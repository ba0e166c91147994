"""Which terminal lark's contextual lexer takes where several match, for `parser: lalr`.

It tries the terminals of a parser state in order of priority, width and length, and stays with the
first that matches, however short; a text terminal within a regex terminal is matched as the regex
and then renamed. So a terminal gives up what those before it would take. What is accepted with it
depends on the place in a rule; the parser's states say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lark import Lark
    from lark.grammar import Rule
    from lark.lexer import TerminalDef
    from lark.parsers.grammar_analysis import LR0ItemSet as ItemSet
    from lark.parsers.lalr_analysis import LALR_Analyzer


class Occurrence(NamedTuple):
    """A place of a terminal: the rule, the symbols of its alternative, and the index among them."""

    rule: str
    symbols: tuple[str, ...]
    idx: int


@dataclass(frozen=True, slots=True)
class Losses:
    """What a terminal loses to others, by their names.

    whole: texts that are exactly theirs. beginning: texts that begin with one of theirs.
    """

    whole: tuple[str, ...] = ()
    beginning: tuple[str, ...] = ()


class LexerOrder:
    """The terminals in the order in which the lexer tries them."""

    def __init__(self, terminals: Iterable[TerminalDef]) -> None:
        # As lark's own lexer sorts them.
        self._order = sorted(
            terminals,
            key=lambda one: (
                -one.priority,
                -one.pattern.max_width,
                -len(one.pattern.value),
                one.name,
            ),
        )
        self._idx = {one.name: idx for idx, one in enumerate(self._order)}
        self._renamed: dict[tuple[str, str], bool] = {}

    def losses(self, name: str, accepted: Iterable[str]) -> Losses:
        """What a terminal loses where these are accepted."""
        mine = self._idx[name]
        whole: list[str] = []
        beginning: list[str] = []
        for idx in sorted(self._idx[other] for other in accepted if other in self._idx):
            other = self._order[idx].name
            if other == name:
                continue
            if self._renames(other, name):
                whole.append(other)
            elif idx < mine and not self._renames(name, other):
                beginning.append(other)
        return Losses(tuple(whole), tuple(beginning))

    def _renames(self, text: str, regex: str) -> bool:
        known = self._renamed.get((text, regex))
        if known is None:
            known = _renames(self._order[self._idx[text]], self._order[self._idx[regex]])
            self._renamed[text, regex] = known
        return known


@dataclass(frozen=True, slots=True)
class Rivals:
    """The terminals that are accepted with one: after some texts, and after all of them."""

    sometimes: frozenset[str]
    always: frozenset[str]


def rivals_of(lark: Lark, rules: Sequence[Rule]) -> Mapping[Occurrence, Rivals]:
    """The rivals of each place of a terminal, ignored terminals left out.

    lark: one with `parser="lalr"`.
    """
    from lark.common import ParserConf
    from lark.parsers.lalr_analysis import LALR_Analyzer

    analyzer = LALR_Analyzer(ParserConf(list(rules), {}, [str(one) for one in lark.options.start]))
    analyzer.compute_lalr()  # type: ignore[no-untyped-call]  # lark leaves it bare
    actions = {
        itemset: frozenset(
            str(symbol.name)
            for symbol in {*itemset.transitions, *itemset.lookaheads}
            if symbol.is_term
        )
        for itemset in analyzer.lr0_itemsets
    }
    reads = _Reads(analyzer)
    found: dict[Occurrence, Rivals] = {}
    for itemset in _lexing_states(analyzer):
        for name in actions[itemset]:
            for place in reads.places(itemset, name):
                here = actions[itemset]
                known = found.get(place, Rivals(here, here))
                found[place] = Rivals(known.sometimes | here, known.always & here)
    return found


def _lexing_states(analyzer: LALR_Analyzer) -> set[ItemSet]:
    """The states in which a terminal is read: the first ones, and those behind a terminal."""
    states = set(analyzer.lr0_start_states.values())
    for itemset in analyzer.lr0_itemsets:
        states.update(to for symbol, to in itemset.transitions.items() if symbol.is_term)
    return states


class _Reads:
    """Where a terminal that is read in a state ends up, after the reductions that it brings."""

    def __init__(self, analyzer: LALR_Analyzer) -> None:
        before: dict[tuple[ItemSet, Rule], list[ItemSet]] = {}
        for (itemset, origin), reduced in analyzer.lookback.items():
            for state, rule in reduced:
                before.setdefault((state, rule), []).append(itemset.transitions[origin])
        self._taken: dict[ItemSet, dict[str, list[Occurrence]]] = {}
        self._onward: dict[ItemSet, dict[str, set[ItemSet]]] = {}
        for itemset in analyzer.lr0_itemsets:
            self._taken[itemset] = _taken_in(itemset)
            self._onward[itemset] = {
                str(symbol.name): {
                    target for rule in rules for target in before.get((itemset, rule), ())
                }
                for symbol, rules in itemset.lookaheads.items()
            }

    def places(self, itemset: ItemSet, name: str) -> Iterator[Occurrence]:
        """The places at which the terminal is taken."""
        seen, todo = {itemset}, [itemset]
        while todo:
            state = todo.pop()
            yield from self._taken[state].get(name, ())
            for target in self._onward[state].get(name, ()):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)


def _taken_in(itemset: ItemSet) -> dict[str, list[Occurrence]]:
    taken: dict[str, list[Occurrence]] = {}
    for pointer in itemset.closure:
        if not pointer.is_satisfied and pointer.next.is_term:
            symbols = tuple(str(symbol.name) for symbol in pointer.rule.expansion)
            place = Occurrence(str(pointer.rule.origin.name), symbols, pointer.index)
            taken.setdefault(str(pointer.next.name), []).append(place)
    return taken


def _renames(text: TerminalDef, regex: TerminalDef) -> bool:
    """Whether the lexer makes the one of the other where a match of that is exactly its text."""
    from lark.lexer import PatternRE, PatternStr

    if not isinstance(text.pattern, PatternStr) or not isinstance(regex.pattern, PatternRE):
        return False
    if text.priority != regex.priority:
        return False
    found = re.match(regex.pattern.to_regexp(), text.pattern.value)
    return found is not None and found[0] == text.pattern.value
