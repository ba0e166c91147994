"""The tables of a journal, and how an older file becomes one of today."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import EngineError
from flowforge.journal.transaction import transaction

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

APPLICATION_ID = 0x464C5746  # "FLWF": tells a journal from any other SQLite file

# Tables with long rows have row ids: without, what is longer than a quarter of a page takes a page
# of its own.
_VERSION_1 = """
CREATE TABLE runs (
  run_id TEXT PRIMARY KEY,
  workflow TEXT NOT NULL,
  target TEXT NOT NULL,
  created_at REAL NOT NULL,
  ended_at REAL,
  status TEXT NOT NULL,
  num_resumes INTEGER NOT NULL DEFAULT 0,
  begun TEXT NOT NULL,
  outcome TEXT
) WITHOUT ROWID;
CREATE INDEX runs_by_time ON runs (created_at);

CREATE TABLE works (
  run_id TEXT NOT NULL,
  path TEXT NOT NULL,
  turn INTEGER NOT NULL,
  kind TEXT NOT NULL,
  key TEXT NOT NULL,
  request TEXT NOT NULL,
  num_starts INTEGER NOT NULL,
  started_at REAL NOT NULL,
  ended_idx INTEGER,
  ended_at REAL,
  status TEXT,
  result TEXT,
  tokens BLOB,
  PRIMARY KEY (run_id, path, turn)
);
CREATE INDEX works_by_end ON works (run_id, ended_idx);

CREATE TABLE events (
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  time_s REAL NOT NULL,
  kind TEXT NOT NULL,
  path TEXT,
  fact TEXT NOT NULL,
  PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;

CREATE TABLE partials (
  run_id TEXT NOT NULL,
  path TEXT NOT NULL,
  turn INTEGER NOT NULL,
  tokens BLOB NOT NULL,
  PRIMARY KEY (run_id, path, turn)
) WITHOUT ROWID;

CREATE TABLE contents (
  digest BLOB PRIMARY KEY,
  body BLOB NOT NULL
);

CREATE TABLE uses (
  run_id TEXT NOT NULL,
  digest BLOB NOT NULL,
  PRIMARY KEY (run_id, digest)
) WITHOUT ROWID;
"""

_VERSION_2 = """
CREATE TABLE cache (
  key TEXT PRIMARY KEY,
  place TEXT NOT NULL,
  parts TEXT NOT NULL,
  kind TEXT NOT NULL,
  result BLOB NOT NULL,
  tokens BLOB,
  created_at REAL NOT NULL,
  used_at REAL NOT NULL,
  num_bytes INTEGER NOT NULL
);
CREATE INDEX cache_by_place ON cache (place, created_at);
CREATE INDEX cache_by_use ON cache (used_at);
"""

MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2)
"""What makes version k + 1 of version k; a new version is one more script at the end."""

VERSION = len(MIGRATIONS)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables, or bring them up to date; safe beside other processes that do the same.

    Raises EngineError EN705 for a journal of a newer FlowForge, EN703 for another program's file.
    """
    if _version(connection) == VERSION and _is_journal(connection):
        return
    with transaction(connection):
        found = _version(connection)
        has_tables = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        if has_tables and not _is_journal(connection):
            raise EngineError(
                "EN703",
                f"{str(path)!r} is a SQLite file of another program, no journal",
                help="nothing was changed; name another file by --journal",
            )
        if found > VERSION:
            raise EngineError(
                "EN705",
                f"the journal {str(path)!r} has version {found}, this FlowForge knows {VERSION}",
                help="use a newer FlowForge, or another file by --journal",
            )
        for script in MIGRATIONS[found:]:
            # Not `executescript`, which would commit before the first statement.
            for statement in filter(str.strip, script.split(";")):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _is_journal(connection: sqlite3.Connection) -> bool:
    found: int = connection.execute("PRAGMA application_id").fetchone()[0]
    return found == APPLICATION_ID
