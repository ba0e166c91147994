"""The order that data puts steps in, and the cycles that leave none."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Set


def order_of(needs: Mapping[str, Set[str]]) -> tuple[list[str], list[str]]:
    """Names so that each stands after what it needs, and the names that cycles hold back."""
    dependents: dict[str, list[str]] = {name: [] for name in needs}
    num_missing = {name: len(needed) for name, needed in needs.items()}
    for name, needed in needs.items():
        for one in needed:
            dependents[one].append(name)
    ready = deque(name for name, count in num_missing.items() if count == 0)
    ordered: list[str] = []
    while ready:
        name = ready.popleft()
        ordered.append(name)
        for dependent in dependents[name]:
            num_missing[dependent] -= 1
            if num_missing[dependent] == 0:
                ready.append(dependent)
    done = set(ordered)
    return ordered, [name for name in needs if name not in done]


def cycles_of(needs: Mapping[str, Set[str]]) -> list[list[str]]:
    """Cycles, shortest through each name, so that every name that is in one is in one listed.

    [a, c, b] means: a needs c, c needs b, b needs a. Names in no cycle, such as those that only
    wait for one, are left out.
    """
    _, stuck = order_of(needs)
    covered: set[str] = set()
    cycles: list[list[str]] = []
    for name in stuck:
        if name not in covered and (cycle := _cycle_through(name, needs)) is not None:
            cycles.append(cycle)
            covered.update(cycle)
    return cycles


def _cycle_through(start: str, needs: Mapping[str, Set[str]]) -> list[str] | None:
    came_from: dict[str, str] = {}
    pending = deque([start])
    while pending:
        name = pending.popleft()
        for needed in sorted(needs[name]):
            if needed == start:
                path = [name]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if needed not in came_from:
                came_from[needed] = name
                pending.append(needed)
    return None
