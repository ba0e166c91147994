"""The standard streams of a command that was started without them, as by `>&-` or a supervisor."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Put the null device where stdin, stdout or stderr is closed; children get it, too.

    Else Python has None there, and the next file that is opened takes the number of the stream.
    """
    # In the order of their numbers: a file that is opened takes the lowest one that is free.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - open to the end
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
