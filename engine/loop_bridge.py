"""From the engine's thread to an event loop: wake a waiter without ever blocking the thread."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint, current_token

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

T = TypeVar("T")


class LoopCaller:
    """How another thread schedules a call on the event loop that runs when this is made.

    `anyio.from_thread.run_sync` would make the engine wait for the loop; both loops offer a call
    that only schedules. On a loop that is gone the call is dropped: nobody waits there any more.
    loop: the same for all callers of one loop.
    """

    def __init__(self) -> None:
        native = current_token().native_token
        is_trio = hasattr(native, "run_sync_soon")
        self.loop: object = native
        self._schedule: Callable[[Callable[[], object]], object] = getattr(
            native, "run_sync_soon" if is_trio else "call_soon_threadsafe"
        )

    def call(self, function: Callable[[], object]) -> None:
        """Have the loop call a function soon; from any thread."""
        try:
            self._schedule(function)
        except RuntimeError as error:
            if not _says_loop_is_gone(error):
                raise


class WakeUps:
    """Wakes waiters of loops: at once, or together at the end of a `held` block.

    To tell a loop something is a system call, at which its thread takes Python's lock from the
    caller, and may keep it for milliseconds. A step has an update for every sequence, and one call
    does for all of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_held = False
        self._waiting: dict[object, tuple[LoopCaller, list[Callable[[], None]]]] = {}

    def wake(self, caller: LoopCaller, function: Callable[[], None]) -> None:
        """Have the loop call a function; from any thread, never blocks."""
        with self._lock:
            if self._is_held:
                self._waiting.setdefault(caller.loop, (caller, []))[1].append(function)
                return
        caller.call(function)

    @contextmanager
    def held(self) -> Generator[None]:
        """Whoever is to be woken meanwhile is woken at the end, in order. One thread at a time."""
        with self._lock:
            self._is_held = True
        try:
            yield
        finally:
            with self._lock:
                self._is_held = False
                waiting, self._waiting = self._waiting, {}
            for caller, functions in waiting.values():
                caller.call(partial(_call_all, functions))


def _call_all(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()


class Mailbox(Generic[T]):
    """Items put by one thread, taken by one task of the loop that made the mailbox.

    What arrives between two takes is taken together, so a slow reader is coalesced and never waited
    for. Unbounded, because what is put is bounded by its maker: one generation's tokens.
    wake_ups: of whoever puts items into several. may_wait: whether an item can wait for the end of
    a reader's rest.
    """

    def __init__(
        self, wake_ups: WakeUps | None = None, may_wait: Callable[[T], bool] = lambda _: False
    ) -> None:
        self._may_wait = may_wait
        self._is_resting = False
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._arrived = anyio.Event()
        self._caller = LoopCaller()
        self._wake_ups = wake_ups or WakeUps()

    def put(self, update: T) -> None:
        """Add an item; from any thread, never blocks."""
        with self._lock:
            wakes = not self._may_wait(update) if self._is_resting else not self._items
            self._items.append(update)
        if wakes:
            self._wake_ups.wake(self._caller, self._wake)

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

    async def rest(self, seconds: float) -> None:
        """Let items come together for so long, or until one comes that may not wait."""
        with self._lock:
            if not all(map(self._may_wait, self._items)):
                return
            self._is_resting = True
        if self._arrived.is_set():
            self._arrived = anyio.Event()
        try:
            with anyio.move_on_after(seconds):
                await self._arrived.wait()
        finally:
            with self._lock:
                self._is_resting = False

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
