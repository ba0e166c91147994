"""Cancel at any await point there is: between any two steps of tasks, on asyncio and on trio.

Nothing of the code under test is changed: the event loop itself counts how often it goes on with
something, and cancels in front of the step that was asked for.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio
from anyio.lowlevel import current_token

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Points(trio.abc.Instrument):
    """Counts the steps of an event loop; `cancel` is called in front of step `point`."""

    def __init__(self, point: int, cancel: Callable[[], object]) -> None:
        self.num_passed = 0
        self._point = point
        self._cancel = cancel

    @property
    def is_reached(self) -> bool:
        """Whether there were so many steps."""
        return self.num_passed >= self._point

    def pass_one(self) -> None:
        """A step begins."""
        self.num_passed += 1
        if self.num_passed == self._point:
            self._cancel()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """For trio."""
        del task
        self.pass_one()


@contextmanager
def cancelling_at(point: int, cancel: Callable[[], object]) -> Generator[Points]:
    """While the block lasts: cancel in front of its step number `point`, from 1."""
    points = Points(point, cancel)
    native: Any = current_token().native_token
    counting = _on_asyncio(native, points) if hasattr(native, "call_soon") else _on_trio(points)
    with counting:
        yield points


@contextmanager
def _on_trio(points: Points) -> Generator[None]:
    trio.lowlevel.add_instrument(points)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(points)


@contextmanager
def _on_asyncio(loop: Any, points: Points) -> Generator[None]:
    call_soon = loop.call_soon

    def counting_call_soon(callback: Callable[..., object], *args: object, **context: Any) -> Any:
        def step(*args: object) -> object:
            points.pass_one()
            return callback(*args)

        return call_soon(step, *args, **context)

    # Tasks look `call_soon` up on the loop each time that they go on.
    loop.call_soon = counting_call_soon
    try:
        yield
    finally:
        del loop.call_soon
