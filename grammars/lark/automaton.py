"""What a regex matches where a text goes on: an automaton that takes the first way as `re` does.

`re` tries ways in order and stays with the first that works; that is neither the longest match nor
always the whole of the text. An automaton whose states are lists of ways, in order and cut off
behind the first that has ended, accepts exactly those texts of which the longest beginning in a
given text is what `re` matches there (the leftmost-first automaton of Thompson's and Cox's RE2).
So a lexer that takes the longest match, as the mask's does, agrees with `re` on the new language.

Looking ahead and behind are conditions that run along: a way carries automata of what must, or
must not, come; one automaton for each look-behind reads the text from its start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from flowforge.grammars.lark.character_set import NOTHING, CharacterSet, partition
from flowforge.grammars.lark.regex_program import (
    Again,
    Check,
    Fork,
    Loop,
    Program,
    Take,
    TooLarge,
)
from flowforge.grammars.lark.regex_tree import Chars, Look, Repeat, Sequence, Unsupported, walk

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from flowforge.grammars.lark.regex_tree import Regex

MAX_STATES = 4_000


Moves: TypeAlias = "tuple[tuple[CharacterSet, int], ...]"


@dataclass(frozen=True, slots=True)
class Dfa:
    """A deterministic automaton; state 0 is the start.

    moves: for each state, what it reads and where that leads; sets of one state do not meet.
    accepting: the states in which the text may end.
    pending: those accepting states that ask something of the text behind.
    at_end: of a look-ahead, the states in which it is fulfilled where the text ends.
    """

    moves: tuple[Moves, ...]
    accepting: frozenset[int]
    pending: dict[int, Pending] = field(default_factory=dict)
    at_end: frozenset[int] = frozenset()

    def matches(self, text: str) -> bool:
        """Whether all of a text is in the language."""
        state: int | None = 0
        for char in text:
            state = self.next_state(state, ord(char))
            if state is None:
                return False
        return state in self.accepting

    def next_state(self, state: int | None, code: int) -> int | None:
        """Where a character leads; None is the state from which no text is accepted."""
        moves = () if state is None else self.moves[state]
        return next((target for chars, target in moves if code in chars), None)


@dataclass(frozen=True, slots=True)
class Pending:
    """An end that depends on the text behind it.

    holds, breaks: the characters with which that text makes it an end, or none, for certain.
    holds_at_end: whether it is an end where no text follows. marker: of the look-ahead that asks.
    """

    holds: CharacterSet
    breaks: CharacterSet
    holds_at_end: bool
    marker: str


# A condition under way: which look, and the state of its automaton.
_Conditions = frozenset[tuple[int, int, bool]]
_Way = tuple[int, _Conditions]
# The ways, and for each look-behind the states its automaton may be in.
_Behind = tuple[frozenset[int | None], ...]
_State = tuple[tuple[_Way, ...], _Behind]


def match_automaton(regex: Regex, *, max_states: int = MAX_STATES) -> Dfa:
    """The automaton of what `re` matches, by longest match; see the file's head.

    Raises TooLarge, and Unsupported for a look-behind that sees text before the match and for
    conditions that depend on each other.
    """
    return _Builder(regex, max_states, is_ordered=True).build()


def language_automaton(regex: Regex, *, max_states: int = MAX_STATES) -> Dfa:
    """The automaton of all texts that a regex can match as a whole, whatever `re` prefers."""
    return _Builder(regex, max_states, is_ordered=False).build()


class _Builder:
    """Builds an automaton state by state.

    is_ordered: whether ways behind an end do not count. is_look: whether it is of a look-ahead,
    which may itself look further ahead than it reads.
    """

    def __init__(
        self, regex: Regex, max_states: int, *, is_ordered: bool, is_look: bool = False
    ) -> None:
        self._program = Program(regex, max_states * 2)
        self._max_states = max_states
        self._is_ordered = is_ordered
        self._is_look = is_look
        self._looks = [self._look_automaton(look) for look in self._program.looks]
        self._behind = [
            idx for idx, look in enumerate(self._program.looks) if look.direction == "behind"
        ]

    def _look_automaton(self, look: Look) -> Dfa:
        if look.direction == "ahead":
            return _Builder(look.part, self._max_states, is_ordered=False, is_look=True).build()
        if any(isinstance(part, Look) for part in walk(look.part)):
            raise Unsupported("a look inside a look-behind", look.marker)
        anything = Repeat(Chars(~NOTHING), 0, None, is_lazy=False)
        return language_automaton(Sequence((anything, look.part)), max_states=self._max_states)

    def build(self) -> Dfa:
        behind: _Behind = tuple(
            frozenset(range(len(self._looks[idx].moves))) for idx in self._behind
        )
        alphabet = self._make_alphabet()
        start = self._state([(self._program.start, frozenset())], behind)
        number = {start: 0}
        todo = [start]
        moves: list[Moves] = []
        while len(moves) < len(todo):
            state = todo[len(moves)]
            found: dict[int, CharacterSet] = {}
            for chars in alphabet:
                target = self._step(state, chars)
                if not target[0]:
                    continue
                if target not in number:
                    if len(todo) >= self._max_states:
                        raise TooLarge
                    number[target] = len(todo)
                    todo.append(target)
                idx = number[target]
                found[idx] = found.get(idx, NOTHING) | chars
            moves.append(tuple((chars, idx) for idx, chars in found.items()))
        return _trimmed(self._with_ends(todo, tuple(moves)))

    def _with_ends(self, states: list[_State], moves: tuple[Moves, ...]) -> Dfa:
        accepting: set[int] = set()
        pending: dict[int, Pending] = {}
        for idx, (ways, _) in enumerate(states):
            ends = [conditions for place, conditions in ways if self._program.steps[place] is None]
            if not ends:
                continue
            if frozenset() in ends:
                accepting.add(idx)
            else:
                pending[idx] = self._pending(ends)
        if self._is_look:
            at_end = {idx for idx, end in pending.items() if end.holds_at_end}
            return Dfa(moves, frozenset(accepting), at_end=frozenset(at_end | accepting))
        return Dfa(moves, frozenset(accepting | set(pending)), pending)

    def _pending(self, ends: list[_Conditions]) -> Pending:
        holds, breaks, holds_at_end = NOTHING, ~NOTHING, False
        marker = ""
        for conditions in ends:
            way_holds, way_breaks, way_holds_at_end = ~NOTHING, NOTHING, True
            for look_idx, at, wanted in conditions:
                look = self._looks[look_idx]
                marker = self._program.looks[look_idx].marker
                done = _read_by(look, at, look.accepting)
                dead = ~_read_by(look, at, range(len(look.moves)))
                way_holds &= done if wanted else dead
                way_breaks |= dead if wanted else done
                way_holds_at_end &= (at in look.at_end) == wanted
            holds |= way_holds
            breaks &= way_breaks
            holds_at_end |= way_holds_at_end
        return Pending(holds, breaks, holds_at_end, marker)

    def _make_alphabet(self) -> list[CharacterSet]:
        """Sets of characters that nothing in the regex and its looks tells apart."""
        sets = {step.chars for step in self._program.steps if isinstance(step, Take)}
        for look in self._looks:
            sets |= {chars for moves in look.moves for chars, _ in moves}
        if self._is_look:
            # What it looks at behind itself may be any character.
            sets.add(~NOTHING)
        alphabet = partition(sets)
        if len(alphabet) > self._max_states:
            raise TooLarge
        return alphabet

    def _step(self, state: _State, chars: CharacterSet) -> _State:
        code = chars.ranges[0][0]
        behind = tuple(
            frozenset(self._looks[idx].next_state(at, code) for at in states)
            for idx, states in zip(self._behind, state[1], strict=True)
        )
        ways: list[_Way] = []
        for place, conditions in state[0]:
            step = self._program.steps[place]
            if isinstance(step, Take) and code in step.chars:
                next = step.next
            elif step is None and self._is_look and conditions:
                # It has been read, and what it looks at behind that is still to be seen.
                next = place
            else:
                continue
            moved = self._moved(conditions, code)
            if moved is not None:
                ways.append((next, moved))
        return self._state(ways, behind)

    def _moved(self, conditions: _Conditions, code: int) -> _Conditions | None:
        """The conditions after a character; None where one of them is broken."""
        moved: set[tuple[int, int, bool]] = set()
        for look_idx, at, wanted in conditions:
            automaton = self._looks[look_idx]
            target = automaton.next_state(at, code)
            if target is None:
                if wanted:
                    return None
            elif target in automaton.accepting:
                if not wanted:
                    return None
            else:
                moved.add((look_idx, target, wanted))
        return frozenset(moved)

    def _state(self, starts: Iterable[_Way], behind: _Behind) -> _State:
        ways: dict[_Way, None] = {}
        # Ways behind an end that is only likely count where a condition of it breaks.
        unless: list[_Conditions] = []
        for place, conditions in self._closure(starts, behind):
            for end in unless:
                conditions |= self._opposite(end)
            if (place, conditions) in ways:
                continue
            ways[place, conditions] = None
            if self._program.steps[place] is None and self._is_ordered:
                if not conditions:
                    break
                unless.append(conditions)
        listed = tuple(ways) if self._is_ordered else tuple(sorted(ways, key=_sort_key))
        return listed, behind

    def _opposite(self, conditions: _Conditions) -> _Conditions:
        if len(conditions) > 1:
            marker = min(self._program.looks[idx].marker for idx, _, _ in conditions)
            raise Unsupported("several look-aheads that end behind the terminal", marker)
        return frozenset((idx, at, not wanted) for idx, at, wanted in conditions)

    def _closure(self, starts: Iterable[_Way], behind: _Behind) -> Iterator[_Way]:
        """Places that read a character or end the match, in order."""
        none: frozenset[int] = frozenset()
        stack = [(place, conditions, none) for place, conditions in reversed(list(starts))]
        # With the loops that were begun since the last character: a round without text ends them.
        seen: set[tuple[int, _Conditions, frozenset[int]]] = set()
        while stack:
            way = stack.pop()
            if way in seen:
                continue
            seen.add(way)
            if len(seen) > self._max_states:
                raise TooLarge
            place, conditions, begun = way
            match self._program.steps[place]:
                case Fork(nexts):
                    stack.extend((next, conditions, begun) for next in reversed(nexts))
                case Loop(nexts):
                    begun |= {place}
                    stack.extend((next, conditions, begun) for next in reversed(nexts))
                case Again(loop):
                    stack.append((self._program.after_round(loop, begun), conditions, begun))
                case Check(look_idx, next):
                    added = self._checked(look_idx, conditions, behind)
                    if added is not None:
                        stack.append((next, added, begun))
                case _:
                    yield place, conditions

    def _checked(
        self, look_idx: int, conditions: _Conditions, behind: _Behind
    ) -> _Conditions | None:
        look, automaton = self._program.looks[look_idx], self._looks[look_idx]
        if look.direction == "ahead":
            if 0 in automaton.accepting:
                return None if look.is_negative else conditions
            if not automaton.accepting and not automaton.at_end:
                return conditions if look.is_negative else None
            return conditions | {(look_idx, 0, not look.is_negative)}
        answers = {at in automaton.accepting for at in behind[self._behind.index(look_idx)]}
        if len(answers) > 1:
            raise Unsupported("a look-behind that sees text before the terminal", look.marker)
        return None if (True in answers) == look.is_negative else conditions


def _sort_key(way: _Way) -> tuple[int, list[tuple[int, int, bool]]]:
    return way[0], sorted(way[1])


def _read_by(automaton: Dfa, state: int, targets: Container[int]) -> CharacterSet:
    """The characters that lead from a state to some of others."""
    chars = NOTHING
    for read, target in automaton.moves[state]:
        if target in targets:
            chars |= read
    return chars


def _trimmed(dfa: Dfa) -> Dfa:
    """Without states that no text ends in or behind; the start stays."""
    sources: dict[int, set[int]] = {}
    for state, moves in enumerate(dfa.moves):
        for _, target in moves:
            sources.setdefault(target, set()).add(state)
    alive = {*dfa.accepting, *dfa.at_end}
    todo = list(alive)
    while todo:
        for source in sources.get(todo.pop(), ()):
            if source not in alive:
                alive.add(source)
                todo.append(source)
    number = {state: idx for idx, state in enumerate(sorted(alive | {0}))}
    kept: list[Moves] = [
        tuple((chars, number[to]) for chars, to in dfa.moves[state] if to in alive)
        for state in number
    ]
    pending = {number[state]: end for state, end in dfa.pending.items()}
    accepting, at_end = (
        frozenset(number[state] for state in states) for states in (dfa.accepting, dfa.at_end)
    )
    return Dfa(tuple(kept), accepting, pending, at_end)
