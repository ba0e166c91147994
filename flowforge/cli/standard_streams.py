"""The standard streams of a command: there, also after `>&-`, and taking every character."""

from __future__ import annotations

import io
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


def escape_what_has_no_bytes() -> None:
    """Write characters that stdout's encoding does not have as escapes, as stderr's are already.

    A result with escapes is of more use than none.
    """
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper) and stdout.encoding.lower() not in ("utf-8", "utf8"):
        stdout.reconfigure(errors="backslashreplace")
