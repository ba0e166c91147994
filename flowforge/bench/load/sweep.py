"""The greatest number of requests at a time at which a server keeps its service level."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowforge.bench.load.figures import Goal, LoadFigures


async def find_limit(
    measure: Callable[[int], Awaitable[LoadFigures]], goals: Sequence[Goal], most: int
) -> tuple[int, list[LoadFigures]]:
    """Double the number until a goal is missed, then halve what is between.

    Returns the limit, 0 where a single request misses one, and all figures by rising number. most:
    where it ends in any case. Supposes that a server keeps a level that it keeps under more.
    """
    seen: dict[int, LoadFigures] = {}

    async def keeps(number: int) -> bool:
        seen[number] = await measure(number)
        return all(goal.is_met(seen[number]) for goal in goals)

    kept, missed, number = 0, None, 1
    while missed is None and kept < most:
        if await keeps(number):
            kept = number
            number = min(2 * number, most)
        else:
            missed = number
    while missed is not None and missed - kept > 1:
        middle = (kept + missed) // 2
        if await keeps(middle):
            kept = middle
        else:
            missed = middle
    return kept, [seen[one] for one in sorted(seen)]
