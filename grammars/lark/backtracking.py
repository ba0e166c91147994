"""Whether Python's `re`, which tries one way after the other, may need exponential time.

It may where some state of the regex comes back to itself in two ways with one text (Weideman et
al., "Analyzing matching time behavior of backtracking regular expression matchers"). `re` holds
the interpreter's lock while it tries, so that nothing could stop it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flowforge.grammars.lark.match_order import may_be_empty
from flowforge.grammars.lark.regex_program import TooLarge, successors_of
from flowforge.grammars.lark.regex_tree import Branch, Repeat, Sequence, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.grammars.lark.regex_tree import Regex

_MAX_PAIRS = 100_000
_MAX_STEPS = 2_000
# As good as without end: two ways for each round are then 65,536.
_MANY_ROUNDS = 16


def may_take_exponential_time(regex: Regex) -> bool:
    """Whether some text can take `re` exponential time; true also where that is too much to tell.

    Looks are taken to be fulfilled, and a counted repeat to go two rounds at most.
    """
    parts = [*walk(regex)]
    if not any(map(_may_diverge, parts)):
        return False
    try:
        return any(map(_is_shuffled, parts)) or _has_two_ways_back(_with_few_rounds(regex))
    except TooLarge:
        return True


def _may_diverge(regex: Regex) -> bool:
    """Whether it is a loop with a choice inside: only those can."""
    if not isinstance(regex, Repeat) or (regex.most is not None and regex.most < _MANY_ROUNDS):
        return False
    return any(
        isinstance(inner, Branch) or (isinstance(inner, Repeat) and inner.least != inner.most)
        for inner in walk(regex.part)
    )


def _is_shuffled(regex: Regex) -> bool:
    """Whether many rounds may be empty: which of them are is a choice for each."""
    if not isinstance(regex, Repeat) or regex.most is None or regex.most < _MANY_ROUNDS:
        return False
    return may_be_empty(regex.part)


def _with_few_rounds(regex: Regex) -> Regex:
    match regex:
        case Repeat(part, least, most):
            bound = None if most is None or most >= _MANY_ROUNDS else min(most, 2)
            return replace(regex, part=_with_few_rounds(part), least=min(least, 1), most=bound)
        case Sequence(parts):
            return Sequence(tuple(map(_with_few_rounds, parts)))
        case Branch(parts):
            return Branch(tuple(map(_with_few_rounds, parts)))
        case _:
            return regex


Pair = tuple[int, int]


def _has_two_ways_back(regex: Regex) -> bool:
    successors, chars = successors_of(regex, _MAX_STEPS)
    edges: dict[Pair, set[Pair]] = {}
    doubled: set[tuple[Pair, Pair]] = set()
    todo: list[Pair] = [(state, state) for state in successors]
    while todo:
        pair = todo.pop()
        if pair in edges:
            continue
        if len(edges) > _MAX_PAIRS:
            raise TooLarge
        one, other = pair
        edges[pair] = set()
        if not chars[one] & chars[other]:
            continue
        for first, num_first in successors[one].items():
            for second in successors[other]:
                target = (first, second)
                edges[pair].add(target)
                if one == other and first == second and num_first > 1:
                    doubled.add((pair, target))
                todo.append(target)
    return any(_is_divergent(component, doubled, edges) for component in _components(edges))


def _is_divergent(
    component: set[Pair], doubled: set[tuple[Pair, Pair]], edges: dict[Pair, set[Pair]]
) -> bool:
    if not any(one == other for one, other in component):
        return False
    if any(one != other for one, other in component):
        return True
    return any(source in component and target in component for source, target in doubled)


def _components(edges: dict[Pair, set[Pair]]) -> Iterator[set[Pair]]:
    """Strongly connected components (Kosaraju)."""
    order: list[Pair] = []
    seen: set[Pair] = set()
    for root in edges:
        stack = [(root, iter(edges[root]))] if root not in seen else []
        seen.add(root)
        while stack:
            node, onward = stack[-1]
            target = next((one for one in onward if one not in seen), None)
            if target is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(edges[target])))
    sources: dict[Pair, list[Pair]] = {}
    for node, targets in edges.items():
        for target in targets:
            sources.setdefault(target, []).append(node)
    left = set(edges)
    for first in reversed(order):
        if first not in left:
            continue
        component, pending = {first}, [first]
        left.remove(first)
        while pending:
            for source in sources.get(pending.pop(), ()):
                if source in left:
                    left.remove(source)
                    component.add(source)
                    pending.append(source)
        yield component
