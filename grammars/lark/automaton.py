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
    from collections.abc import Iterable, Iterator

    from flowforge.grammars.lark.regex_tree import Regex

MAX_STATES = 4_000


Moves: TypeAlias = "tuple[tuple[CharacterSet, int], ...]"


@dataclass(frozen=True, slots=True)
class Dfa:
    """A deterministic automaton; state 0 is the start.

    moves: for each state, what it reads and where that leads; sets of one state do not meet.
    accepting: the states in which the text may end.
    pending: for each accepting state that asks something of the text behind, the characters with
    which that text would answer otherwise.
    """

    moves: tuple[Moves, ...]
    accepting: frozenset[int]
    pending: dict[int, Pending] = field(default_factory=dict)

    def matches(self, text: str) -> bool:
        """Whether all of a text is in the language."""
        state: int | None = 0
        for char in text:
            state = self.next_state(state, ord(char))
            if state is None:
                return False
        return state in self.accepting

    def longest_match(self, text: str, start: int = 0) -> int | None:
        """The end of the longest match from a place on, or None."""
        state: int | None = 0
        found = start if 0 in self.accepting else None
        for idx in range(start, len(text)):
            state = self.next_state(state, ord(text[idx]))
            if state is None:
                return found
            if state in self.accepting:
                found = idx + 1
        return found

    def next_state(self, state: int | None, code: int) -> int | None:
        """Where a character leads; None is the state from which no text is accepted."""
        moves = () if state is None else self.moves[state]
        return next((target for chars, target in moves if code in chars), None)


@dataclass(frozen=True, slots=True)
class Pending:
    """A look-ahead that ends behind the terminal. chars: after which it may fail."""

    chars: CharacterSet
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
    """Builds an automaton state by state."""

    def __init__(self, regex: Regex, max_states: int, *, is_ordered: bool) -> None:
        self._program = Program(regex, max_states * 2)
        self._max_states = max_states
        self._is_ordered = is_ordered
        self._looks = [self._look_automaton(look) for look in self._program.looks]
        self._behind = [
            idx for idx, look in enumerate(self._program.looks) if look.direction == "behind"
        ]

    def _look_automaton(self, look: Look) -> Dfa:
        if any(isinstance(part, Look) for part in walk(look.part)):
            raise Unsupported("a look inside a look", look.marker)
        part = look.part
        if look.direction == "behind":
            anything = Repeat(Chars(~NOTHING), 0, None, is_lazy=False)
            part = Sequence((anything, part))
        return language_automaton(part, max_states=self._max_states)

    def build(self) -> Dfa:
        behind: _Behind = tuple(
            frozenset(range(len(self._looks[idx].moves))) for idx in self._behind
        )
        start = self._state([(self._program.start, frozenset())], behind)
        number = {start: 0}
        todo = [start]
        moves: list[Moves] = []
        while len(moves) < len(todo):
            state = todo[len(moves)]
            found: dict[int, CharacterSet] = {}
            for chars in self._atoms(state):
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
        accepting: set[int] = set()
        pending: dict[int, Pending] = {}
        for idx, state in enumerate(todo):
            end = self._end_of(state)
            if end is not None:
                accepting.add(idx)
                if end.chars:
                    pending[idx] = end
        return _trimmed(Dfa(tuple(moves), frozenset(accepting), pending))

    def _end_of(self, state: _State) -> Pending | None:
        """What the best way that ends here asks of the text behind; None where no way ends."""
        for place, conditions in state[0]:
            if self._program.steps[place] is not None:
                continue
            chars, marker = NOTHING, ""
            for look_idx, at, _ in conditions:
                look = self._program.looks[look_idx]
                if not look.is_negative:
                    raise Unsupported(
                        "a look-ahead that wants text behind the terminal", look.marker
                    )
                chars |= _readable(self._looks[look_idx], at)
                marker = look.marker
            return Pending(chars, marker)
        return None

    def _atoms(self, state: _State) -> list[CharacterSet]:
        """Sets of characters that no way of the state tells apart, and that some way reads."""
        sets = {
            step.chars
            for place, _ in state[0]
            if isinstance(step := self._program.steps[place], Take)
        }
        watched = {
            chars
            for _, conditions in state[0]
            for look_idx, at, _ in conditions
            for chars, _ in self._looks[look_idx].moves[at]
        }
        for idx, states in zip(self._behind, state[1], strict=True):
            watched |= {
                chars for at in states if at is not None for chars, _ in self._looks[idx].moves[at]
            }
        atoms = partition(sets)
        for chars in watched:
            atoms = [piece for atom in atoms for piece in (atom & chars, atom - chars) if piece]
            if len(atoms) > self._max_states:
                raise TooLarge
        return atoms

    def _step(self, state: _State, chars: CharacterSet) -> _State:
        code = chars.ranges[0][0]
        behind = tuple(
            frozenset(self._looks[idx].next_state(at, code) for at in states)
            for idx, states in zip(self._behind, state[1], strict=True)
        )
        ways: list[_Way] = []
        for place, conditions in state[0]:
            step = self._program.steps[place]
            if not isinstance(step, Take) or code not in step.chars:
                continue
            moved = self._moved(conditions, code)
            if moved is not None:
                ways.append((step.next, moved))
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
        extra: _Conditions = frozenset()
        for place, conditions in self._closure(starts, behind):
            conditions |= extra
            if (place, conditions) in ways:
                continue
            ways[place, conditions] = None
            if self._program.steps[place] is None and self._is_ordered:
                if not conditions:
                    break
                # Ways behind an end that is only likely count where its condition breaks.
                extra = self._unless(conditions)
        listed = tuple(ways) if self._is_ordered else tuple(sorted(ways, key=_sort_key))
        return listed, behind

    def _unless(self, conditions: _Conditions) -> _Conditions:
        if len(conditions) > 1:
            markers = {self._program.looks[idx].marker for idx, _, _ in conditions}
            raise Unsupported("several look-aheads that end behind the terminal", min(markers))
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
            if not automaton.accepting:
                return conditions if look.is_negative else None
            return conditions | {(look_idx, 0, not look.is_negative)}
        answers = {at in automaton.accepting for at in behind[self._behind.index(look_idx)]}
        if len(answers) > 1:
            raise Unsupported("a look-behind that sees text before the terminal", look.marker)
        return None if (True in answers) == look.is_negative else conditions


def _sort_key(way: _Way) -> tuple[int, list[tuple[int, int, bool]]]:
    return way[0], sorted(way[1])


def _readable(automaton: Dfa, state: int) -> CharacterSet:
    chars = NOTHING
    for read, _ in automaton.moves[state]:
        chars |= read
    return chars


def _trimmed(dfa: Dfa) -> Dfa:
    """Without states that no text ends in or behind; the start stays."""
    sources: dict[int, set[int]] = {}
    for state, moves in enumerate(dfa.moves):
        for _, target in moves:
            sources.setdefault(target, set()).add(state)
    alive = set(dfa.accepting)
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
    return Dfa(tuple(kept), frozenset(number[state] for state in dfa.accepting), pending)
