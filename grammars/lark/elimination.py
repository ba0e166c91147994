"""An automaton written as a regex again: states go one by one, ways through them stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.grammars.lark.automaton import Dfa
from flowforge.grammars.lark.character_set import NOTHING, CharacterSet, partition
from flowforge.grammars.lark.regex_program import TooLarge
from flowforge.grammars.lark.regex_tree import EMPTY, Branch, Chars, Repeat, Sequence, sequence

if TYPE_CHECKING:
    from flowforge.grammars.lark.regex_tree import Regex

MAX_PARTS = 20_000


def is_same_language(one: Dfa, other: Dfa) -> bool:
    """Whether two automata accept the same texts."""
    todo: list[tuple[int | None, int | None]] = [(0, 0)]
    seen = {*todo}
    while todo:
        mine, yours = todo.pop()
        if (mine in one.accepting) != (yours in other.accepting):
            return False
        for chars in partition([*_read(one, mine), *_read(other, yours)]):
            code = chars.ranges[0][0]
            target = (one.next_state(mine, code), other.next_state(yours, code))
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return True


def has_text_outside(dfa: Dfa, whole: list[Dfa], beginning: list[Dfa]) -> bool:
    """Whether a text of the first is in none of some, and begins with no text of others."""
    others = [*whole, *beginning]
    todo: list[tuple[int | None, ...]] = [(0,) * (1 + len(others))]
    seen = {*todo}
    while todo:
        states = todo.pop()
        is_in = [state in one.accepting for one, state in zip(others, states[1:], strict=True)]
        if any(is_in[len(whole) :]):
            continue
        if states[0] in dfa.accepting and not any(is_in):
            return True
        pairs = [*zip((dfa, *others), states, strict=True)]
        for chars in partition([read for one, state in pairs for read in _read(one, state)]):
            code = chars.ranges[0][0]
            target = tuple(one.next_state(state, code) for one, state in pairs)
            if target[0] is not None and target not in seen:
                seen.add(target)
                todo.append(target)
    return False


def without_first(dfa: Dfa, chars: CharacterSet) -> Dfa:
    """The texts of an automaton's language that do not begin with these characters."""
    begin = tuple((left, to + 1) for read, to in dfa.moves[0] if (left := read - chars))
    moves = tuple(tuple((read, to + 1) for read, to in moves) for moves in dfa.moves)
    accepting = {state + 1 for state in dfa.accepting} | ({0} if 0 in dfa.accepting else set())
    return Dfa((begin, *moves), frozenset(accepting))


def minimal(dfa: Dfa) -> Dfa:
    """The smallest automaton of the same language (Moore's partitions)."""
    alphabet = partition({chars for moves in dfa.moves for chars, _ in moves})
    codes = [chars.ranges[0][0] for chars in alphabet]
    table = [[dfa.next_state(state, code) for code in codes] for state in range(len(dfa.moves))]
    block = [int(state in dfa.accepting) for state in range(len(dfa.moves))]
    num_blocks = len(set(block))
    while True:
        signatures = [
            (block[state], *(-1 if to is None else block[to] for to in row))
            for state, row in enumerate(table)
        ]
        # In the order of first states, so that the start keeps number 0.
        number = {signature: idx for idx, signature in enumerate(dict.fromkeys(signatures))}
        block = [number[signature] for signature in signatures]
        if len(number) == num_blocks:
            break
        num_blocks = len(number)
    first = {block[state]: state for state in reversed(range(len(block)))}
    moves = tuple(_merged(table[first[idx]], alphabet, block) for idx in range(num_blocks))
    accepting = frozenset(block[state] for state in dfa.accepting)
    return Dfa(moves, accepting)


def regex_of(dfa: Dfa) -> Regex | None:
    """A regex of the automaton's language; None where that is empty.

    Raises TooLarge where the regex would be.
    """
    small = minimal(dfa)
    return _between(small, 0, small.accepting)


def endings_of(dfa: Dfa) -> list[tuple[Regex, Regex | None]]:
    """For each way a text can end, a regex of such texts and one of what may follow, if anything.

    No text is in two of them. Raises TooLarge.
    """
    small = minimal(dfa)
    found: list[tuple[Regex, Regex | None]] = []
    for state in sorted(small.accepting):
        onwards = [
            sequence((Chars(chars), onward))
            for chars, target in small.moves[state]
            if (onward := _between(small, target, small.accepting)) is not None
        ]
        ending = _between(small, 0, frozenset({state}))
        if ending is not None:
            found.append((ending, Branch(tuple(onwards)) if onwards else None))
    return found


def _between(small: Dfa, begin: int, ends: frozenset[int]) -> Regex | None:
    """A regex of the texts that lead from a state to one of others."""
    num_states = len(small.moves)
    start, end = num_states, num_states + 1
    edges: dict[int, dict[int, Regex]] = {state: {} for state in range(num_states + 2)}
    for state, moves in enumerate(small.moves):
        for chars, target in moves:
            _connect(edges, state, target, Chars(chars))
    edges[start][begin] = EMPTY
    for state in ends:
        edges[state][end] = EMPTY
    left = set(range(num_states))
    while left:
        state = min(left, key=lambda one: (_cost(edges, one), one))
        left.remove(state)
        _eliminate(edges, state)
    return edges[start].get(end)


def _eliminate(edges: dict[int, dict[int, Regex]], state: int) -> None:
    out = edges.pop(state)
    loop = out.pop(state, None)
    round_ = EMPTY if loop is None else Repeat(loop, 0, None, is_lazy=False)
    for source, targets in edges.items():
        into = targets.pop(state, None)
        if into is None:
            continue
        for target, onward in out.items():
            _connect(edges, source, target, sequence((into, round_, onward)))


def _connect(edges: dict[int, dict[int, Regex]], source: int, target: int, regex: Regex) -> None:
    there = edges[source].get(target)
    joined = regex if there is None else _either(there, regex)
    if _size(joined) > MAX_PARTS:
        raise TooLarge
    edges[source][target] = joined


def _either(one: Regex, other: Regex) -> Regex:
    if isinstance(one, Chars) and isinstance(other, Chars):
        return Chars(one.chars | other.chars)
    parts = (*_branches(one), *_branches(other))
    if EMPTY in parts:
        kept = tuple(part for part in parts if part != EMPTY)
        inner = kept[0] if len(kept) == 1 else Branch(kept)
        return Repeat(inner, 0, 1, is_lazy=False)
    return Branch(parts)


def _branches(regex: Regex) -> tuple[Regex, ...]:
    match regex:
        case Branch(parts):
            return parts
        case Repeat(part=part, least=0, most=1):
            return (*_branches(part), EMPTY)
        case _:
            return (regex,)


def _cost(edges: dict[int, dict[int, Regex]], state: int) -> int:
    """Roughly how much the regexes grow when a state goes."""
    into = [_size(targets[state]) for targets in edges.values() if state in targets]
    out = [_size(regex) for regex in edges[state].values()]
    return sum(into) * len(out) + sum(out) * len(into)


def _size(regex: Regex) -> int:
    match regex:
        case Sequence(parts) | Branch(parts):
            return 1 + sum(map(_size, parts))
        case Repeat(part=part):
            return 1 + _size(part)
        case _:
            return 1


def _read(dfa: Dfa, state: int | None) -> list[CharacterSet]:
    return [] if state is None else [chars for chars, _ in dfa.moves[state]]


def _merged(
    row: list[int | None], alphabet: list[CharacterSet], block: list[int]
) -> tuple[tuple[CharacterSet, int], ...]:
    found: dict[int, CharacterSet] = {}
    for chars, target in zip(alphabet, row, strict=True):
        if target is not None:
            found[block[target]] = found.get(block[target], NOTHING) | chars
    return tuple((chars, target) for target, chars in found.items())
