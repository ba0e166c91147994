"""Where tests end a process in the middle of things, as `kill -9` and a power cut do.

`FLOWFORGE_FAILPOINT=before-commit:3` kills the process when it reaches that place the third time.
Without the variable nothing happens.
"""

from __future__ import annotations

import os
import signal
from itertools import count

from flowforge import environment

_counts = {name: count(1) for name in ("before-commit", "after-commit", "partials", "tool")}


def reach(name: str) -> None:
    """Say that the process is at this place; may not return."""
    wanted = environment.FAILPOINT.text()
    if not wanted:
        return
    place, _, number = wanted.partition(":")
    if place == name and next(_counts[name]) == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
