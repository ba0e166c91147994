"""Files that a command was asked to write: looked at before the work, written behind it."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


def require_writable(path: Path | None) -> None:
    """Raise WorkflowError WF542 where no file can be written at `path`; None is none.

    What is there stays as it is, and what is not is not there afterwards.
    """
    if path is None or (path.exists() and not (path.is_file() or path.is_dir())):
        # Pipes and terminals are opened once.
        return
    is_there = path.exists()
    with _told(path):
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666))
        if not is_there:
            path.unlink()


def write_file(path: Path, text: str) -> None:
    """Write a text. Raises WorkflowError WF542; a full disk is told by `guarded`."""
    with _told(path):
        path.write_text(text, encoding="utf-8")


def make_folder(path: Path) -> None:
    """Have a folder, with those it lies in. Raises WorkflowError WF542."""
    with _told(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def _told(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in DISK_IS_FULL:
            raise
        reason = (error.strerror or str(error)).lower()
        raise WorkflowError(
            "WF542",
            f"{str(path)!r} cannot be written: {reason}",
            help="name a place that can be written; folders on the way to a file have to be there",
        ) from error
