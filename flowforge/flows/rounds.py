"""Loops that end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio.lowlevel

from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of a loop. number: from 1."""

    number: int
    is_last: bool


class rounds:
    """`async for turn in rounds(3)`: at most that many rounds; leave earlier with `break`.

    Each round is a point where a cancelled run ends. Raises WorkflowError WF607 unless 1 or more.
    """

    def __init__(self, max_rounds: int) -> None:
        """max_rounds: 1 or more."""
        require_count("rounds", max_rounds)
        self._max_rounds = max_rounds
        self._num_done = 0

    def __aiter__(self) -> AsyncIterator[Round]:
        """Itself: a loop is gone through once."""
        return self

    async def __anext__(self) -> Round:
        """The next round."""
        await anyio.lowlevel.checkpoint()
        if self._num_done == self._max_rounds:
            raise StopAsyncIteration
        self._num_done += 1
        return Round(self._num_done, self._num_done == self._max_rounds)


def require_count(what: str, count: int) -> None:
    """Refuse a number below 1 with WorkflowError WF607."""
    if count < 1:
        raise WorkflowError("WF607", f"the number of {what} must be 1 or more, got {count}")
