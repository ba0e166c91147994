"""Python code that is given a while, and then stopped."""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Interrupted(BaseException):
    """Raised inside the work when its time is over; no handler of its own may swallow it."""


_AGAIN_S = 0.05


def run_for(seconds: float, work: Callable[[], T]) -> T:
    """Do a work on this thread, for so long at most. Raises Interrupted.

    The work must be Python code: what one call into C does is not interrupted.
    """
    if not isinstance(sys.unraisablehook, _Unheard):
        sys.unraisablehook = _Unheard(sys.unraisablehook)
    thread_id = threading.get_ident()
    lock = threading.Lock()
    ended = threading.Event()
    state = _State()

    def interrupt() -> None:
        pause_s = seconds
        # Again and again: Python drops what is raised in a callback of its garbage collector.
        while not ended.wait(pause_s):
            with lock:
                if state.is_over:
                    return
                state.has_raised = True
                _raise_in(thread_id)
            pause_s = _AGAIN_S

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        return work()
    finally:
        # First, and no call: nothing can be raised before it, and one more at most behind it.
        state.is_over = True
        try:
            with lock:
                ended.set()
            if state.has_raised:
                _take_in(thread_id)
        except Interrupted:
            # That one; what it asks for is being done.
            pass


@dataclass(frozen=True, slots=True)
class _Unheard:
    """Python's hook for what it drops, but for interruptions: those are raised again.

    It stays in its place: several threads may be interrupted at one time.
    """

    others: Callable[[sys.UnraisableHookArgs], object]

    def __call__(self, dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, Interrupted):
            self.others(dropped)


@dataclass(slots=True)
class _State:
    is_over: bool = False
    has_raised: bool = False


def _raise_in(thread_id: int) -> None:
    raised = ctypes.py_object(Interrupted)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), raised)


def _take_in(thread_id: int) -> None:
    """Take the one that may not be raised yet in its place; of this thread, when no other can come.

    Taking it back instead would leave Python's word that there is something to raise standing: each
    call and each round of a loop would look for it from then on, and under a tracer (a debugger,
    coverage) the next call would look for ever.
    """
    try:
        _raise_in(thread_id)
        while True:
            pass
    except Interrupted:
        return
