"""Processes of runs that go on by themselves: begun here, and left when they have begun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.control.orders import socket_path

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = re.compile(r"^run (\S+)$", re.MULTILINE)
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Detached:
    """A run that has begun. log: the file of what its process says."""

    run_id: str
    log: str


@dataclass(frozen=True, slots=True)
class NotBegun:
    """A process that ended before its run began; said: what it said."""

    code: int
    said: str


def forget_leftovers(journal: Path, run_id: str) -> None:
    """Take away what processes of a run that nobody has any more left beside the journal."""
    folder = journal.with_name(f"{journal.name}.locks")
    for file in (*folder.glob(f"{run_id}-*.log"), folder / f"{run_id}.lock"):
        file.unlink(missing_ok=True)
    socket_path(journal, run_id).unlink(missing_ok=True)


def begin_detached(journal: Path, arguments: Sequence[str]) -> Detached | NotBegun:
    """Start `flowforge` with these arguments in a session of its own.

    Returns when the run has begun, which takes as long as its model takes to load, or has failed
    to. What the process says goes to a file beside the journal.
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
                # Named by its run, so that whoever forgets the run finds it.
                kept = folder / f"{found[1]}{Path(name).name.removeprefix('run')}"
                os.rename(name, kept)
                # Whoever began it may outlive it: then no dead process must be left.
                threading.Thread(target=process.wait, daemon=True).start()
                return Detached(found[1], str(kept))
            if has_ended:
                os.unlink(name)
                return NotBegun(process.returncode, text)
            time.sleep(_LOOK_S)
