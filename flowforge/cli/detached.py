"""Runs that go on without a terminal: `flowforge run --detach`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from flowforge.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

_NAMED = re.compile(r"^run (\S+)$", re.MULTILINE)
_LOOK_S = 0.05


def run_detached(journal: Path, arguments: list[str]) -> ExitCode:
    """Start `flowforge` with these arguments in a session of its own; prints the run's name.

    What the process says goes to a file beside the journal. Returns when the run has begun, or with
    the process's own exit code where it ends before.
    """
    folder = journal.with_name(f"{journal.name}.locks")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix="run-", suffix=".log", dir=folder)
    with os.fdopen(descriptor, "r+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flowforge", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        while True:
            has_ended = process.poll() is not None
            log.seek(0)
            text = log.read()
            if (found := _NAMED.search(text)) is not None:
                sys.stdout.write(f"{found[1]}\n")
                sys.stderr.write(f"what it says is in {name}\n")
                return ExitCode.DONE
            if has_ended:
                sys.stderr.write(text)
                return ExitCode(process.returncode)
            time.sleep(_LOOK_S)
