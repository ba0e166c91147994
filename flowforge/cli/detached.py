"""Runs that go on without a terminal: `--detach`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from flowforge.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path


def run_detached(journal: Path) -> ExitCode:
    """Carry this very command out in the background; prints the run's name once it has begun.

    What the process says goes to a file beside the journal. The exit code is the process's own
    where it ends before.
    """
    from flowforge.control.detaching import NotBegun, begin_detached

    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    begun = begin_detached(journal, [*arguments, "--wait-for-answers"])
    if isinstance(begun, NotBegun):
        sys.stderr.write(begun.said)
        return ExitCode(begun.code)
    sys.stdout.write(f"{begun.run_id}\n")
    sys.stderr.write(f"what it says is in {begun.log}\n")
    return ExitCode.DONE
