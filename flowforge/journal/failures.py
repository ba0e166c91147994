"""What SQLite says against a journal, as errors that its operator can act on."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

BUSY_TIMEOUT_S = 10.0
"""How long one process waits for another that writes to the same journal."""


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds what is needed, so that waiting may help."""
    return _primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


@contextmanager
def told(path: Path) -> Generator[None]:
    """Turn SQLite's errors about the journal at `path` into EngineError EN7xx."""
    try:
        yield
    except sqlite3.Error as error:
        raise journal_error(path, error) from error


def journal_error(path: Path, error: sqlite3.Error) -> EngineError:
    """EN701 locked, EN702 no space, EN703 damaged, EN704 cannot be opened or written."""
    primary = _primary_code(error)
    name = f"the journal {str(path)!r}"
    if is_busy(error):
        return EngineError(
            "EN701",
            f"{name} is locked: another process has been writing to it for over "
            f"{BUSY_TIMEOUT_S:g} s",
            help="let the other process end, or give this one a journal of its own by --journal",
        )
    if primary == sqlite3.SQLITE_FULL or _is_full(error):
        return EngineError(
            "EN702",
            f"{name} cannot grow: no space is left on its disk",
            help="make room, for example by 'flowforge runs prune', then 'flowforge resume RUN'",
        )
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return EngineError(
            "EN703",
            f"{name} is damaged or no journal: {error}",
            help="nothing was changed; keep a copy, and recover it with the sqlite3 tool's "
            "'.recover', or go on with another file by --journal",
        )
    return EngineError(
        "EN704",
        f"{name} cannot be used: {error}",
        help="check that its folder is there and can be written to, or choose another file by "
        "--journal",
    )


def _primary_code(error: sqlite3.Error) -> int:
    # Extended codes keep the primary one in their low byte.
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _is_full(error: sqlite3.Error) -> bool:
    # A write that the disk refuses may come as an I/O error whose message says no more.
    return getattr(error, "sqlite_errorname", "") in {"SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSTAT"}
