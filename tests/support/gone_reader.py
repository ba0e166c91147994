"""Commands whose reader has left before they write."""

from __future__ import annotations

import os
import subprocess
import sys


def run_for_a_reader_that_left(*arguments: str) -> tuple[int, str]:
    """The exit code of `flowforge` with these arguments, and what it said on stderr."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "flowforge", *arguments],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            timeout=20,
            check=False,
        )
    finally:
        os.close(write_end)
    return done.returncode, done.stderr
