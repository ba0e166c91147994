"""Python code that is given a while, and then stopped."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Interrupted(BaseException):
    """Raised inside the work when its time is over; no handler of its own may swallow it."""


def run_for(seconds: float, work: Callable[[], T]) -> T:
    """Do a work on this thread, for so long at most. Raises Interrupted.

    The work must be Python code: what one call into C does is not interrupted.
    """
    thread_id = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    is_over = is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        with lock:
            if not is_over:
                is_interrupted = True
                raised = ctypes.py_object(Interrupted)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, raised)

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        return work()
    finally:
        with lock:
            is_over = True
            if is_interrupted:
                # One that came as the work ended, and is not raised yet, must not be raised later.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, None)
        timer.cancel()
