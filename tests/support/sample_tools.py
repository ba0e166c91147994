"""Tools that tests call; imported by name, like those of a workflow."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import date  # noqa: TC003 - type hints of tools are read
from typing import Literal

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread


@dataclass
class Tally:
    """What the tools of this module did; a test makes it fresh."""

    num_running: int = 0
    peak: int = 0
    num_swallowed: int = 0
    num_calls: int = 0


TALLY = Tally()
LATE = threading.Event()
"""Lets the blocked threads of `block` go on."""


def fresh() -> Tally:
    """Begin a new tally."""
    for name, value in vars(Tally()).items():
        setattr(TALLY, name, value)
    LATE.clear()
    return TALLY


def add(left: int, right: int = 1) -> int:
    """Add."""
    return left + right


async def greet(name: str, manner: Literal["kind", "curt"] = "kind") -> dict[str, str]:
    """Greet."""
    await anyio.lowlevel.checkpoint()
    return {"text": f"{'Dear' if manner == 'kind' else 'Oi'} {name}"}


def weekday(day: date) -> str:
    """Name a day."""
    return day.strftime("%A")


def fail(reason: str) -> None:
    """Raise."""
    raise ValueError(reason)


def block() -> str:
    """Block until `LATE` is set."""
    TALLY.num_calls += 1
    LATE.wait(10)
    return "late"


async def swallow(times: int) -> str:
    """Swallow its cancellation so many times, then return."""
    for _ in range(times):
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            TALLY.num_swallowed += 1
    await anyio.sleep(60)
    return "never"


async def count(delay_s: float = 0.0) -> int:
    """Count how many calls run at one time."""
    TALLY.num_running += 1
    TALLY.peak = max(TALLY.peak, TALLY.num_running)
    try:
        await anyio.sleep(delay_s)
    finally:
        TALLY.num_running -= 1
    return TALLY.peak


def flaky(failures: int) -> str:
    """Fail so many times, then return."""
    TALLY.num_calls += 1
    if TALLY.num_calls <= failures:
        raise OSError("503")
    return "up"


def number() -> float:
    """Give what JSON cannot say."""
    return object()  # type: ignore[return-value]  # a wrong result is what is tested


def positional(value: int, /) -> int:
    """Take no argument by name."""
    return value


NOT_A_FUNCTION = 5


def nested() -> int:
    """Wait in a worker thread for another worker thread."""

    async def further() -> int:
        return await anyio.to_thread.run_sync(add, 1)

    return anyio.from_thread.run(further)
