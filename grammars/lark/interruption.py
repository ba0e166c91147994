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


_AGAIN_S = 0.05


def run_for(seconds: float, work: Callable[[], T]) -> T:
    """Do a work on this thread, for so long at most. Raises Interrupted.

    The work must be Python code: what one call into C does is not interrupted.
    """
    thread_id = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    is_over = threading.Event()

    def interrupt() -> None:
        pause_s = seconds
        # Again and again: Python drops what is raised in a callback of its garbage collector.
        while not is_over.wait(pause_s):
            with lock:
                if not is_over.is_set():
                    raised = ctypes.py_object(Interrupted)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, raised)
            pause_s = _AGAIN_S

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        return work()
    finally:
        while not is_over.is_set():
            try:
                with lock:
                    is_over.set()
                    # One that is not raised yet must not be raised later.
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, None)
            except Interrupted:
                # One more came while this ended: what it asks for is being done.
                continue
