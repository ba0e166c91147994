"""From the engine's thread to an event loop: wake a waiter without ever blocking the thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint, current_token

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def loop_caller() -> Callable[[Callable[[], object]], None]:
    """How another thread schedules a call on the event loop that runs this function.

    `anyio.from_thread.run_sync` would make the engine wait for the loop; both loops offer a call
    that only schedules. On a loop that is gone the call is dropped: nobody waits there any more.
    """
    native = current_token().native_token
    is_trio = hasattr(native, "run_sync_soon")
    schedule: Callable[[Callable[[], object]], object] = getattr(
        native, "run_sync_soon" if is_trio else "call_soon_threadsafe"
    )

    def call(function: Callable[[], object]) -> None:
        try:
            schedule(function)
        except RuntimeError as error:
            if not _says_loop_is_gone(error):
                raise

    return call


class Mailbox(Generic[T]):
    """Items put by one thread, taken by one task of the loop that made the mailbox.

    What arrives between two takes is taken together, so a slow reader is coalesced and never waited
    for. Unbounded, because what is put is bounded by its maker: one generation's tokens.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._arrived = anyio.Event()
        self._call = loop_caller()

    def put(self, update: T) -> None:
        """Add an item; from any thread, never blocks."""
        with self._lock:
            was_empty = not self._items
            self._items.append(update)
        if was_empty:
            self._call(self._wake)

    async def take(self) -> list[T]:
        """Wait for at least one item, then take all there are, in order.

        Lets other tasks run first, or a fast thread would keep the loop to this reader alone.
        """
        if self._items:
            await checkpoint()
        while not (items := self.take_waiting()):
            await self._arrived.wait()
            self._arrived = anyio.Event()
        return items

    def take_waiting(self) -> list[T]:
        """Take what there is now, in order; maybe nothing."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
        return items

    def _wake(self) -> None:
        self._arrived.set()


def _says_loop_is_gone(error: RuntimeError) -> bool:
    # asyncio: "Event loop is closed"; trio: trio.RunFinishedError, a RuntimeError.
    return "closed" in str(error) or type(error).__name__ == "RunFinishedError"
