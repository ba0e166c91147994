"""Results kept by what decides them, in the journal's file, for runs that ask the same again."""

from __future__ import annotations

import json
import zlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import anyio

from flowforge.journal.contents import pack_tokens, unpack_tokens

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncGenerator, Mapping

    from flowforge.journal.records import WorkKind
    from flowforge.language.program import JsonValue

MAX_CACHE_BYTES = 200_000_000
"""Of all results together; those that were not used for the longest time go first."""


@dataclass(frozen=True, slots=True)
class CachedResult:
    """A result. place: the step that it was made for; parts: of its key, by name.

    created_at: seconds since 1970.
    """

    key: str
    place: str
    parts: Mapping[str, str]
    kind: WorkKind
    result: JsonValue
    tokens: tuple[int, ...] | None
    created_at: float


def find_result(connection: sqlite3.Connection, key: str, now: float) -> CachedResult | None:
    """The result under a key; notes that it was used."""
    row = connection.execute(
        "SELECT key, place, parts, kind, result, tokens, created_at FROM cache WHERE key = ?",
        (key,),
    ).fetchone()
    if row is not None:
        connection.execute("UPDATE cache SET used_at = ? WHERE key = ?", (now, key))
    return None if row is None else _result_of(row)


def results_at(connection: sqlite3.Connection, place: str) -> list[CachedResult]:
    """The results made for a step, the newest first, a hundred at most."""
    rows = connection.execute(
        "SELECT key, place, parts, kind, result, tokens, created_at FROM cache "
        "WHERE place = ? ORDER BY created_at DESC LIMIT 100",
        (place,),
    )
    return [_result_of(row) for row in rows]


def keep_result(connection: sqlite3.Connection, kept: CachedResult, max_bytes: int) -> None:
    """Keep a result, and forget what no longer fits beside it."""
    body = zlib.compress(json.dumps(kept.result).encode(), 1)
    parts = json.dumps(dict(kept.parts))
    tokens = None if kept.tokens is None else pack_tokens(kept.tokens)
    num_bytes = len(body) + len(parts) + len(tokens or b"")
    connection.execute(
        "INSERT OR REPLACE INTO cache VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(kept.key, kept.place, parts, kept.kind, body, tokens),
            *(kept.created_at, kept.created_at, num_bytes),
        ),
    )
    (total,) = connection.execute("SELECT SUM(num_bytes) FROM cache").fetchone()
    for key, size in connection.execute("SELECT key, num_bytes FROM cache ORDER BY used_at, rowid"):
        if total <= max_bytes:
            break
        connection.execute("DELETE FROM cache WHERE key = ?", (key,))
        total -= size


def forget_results(connection: sqlite3.Connection, unused_since: float) -> int:
    """Forget the results that were used last before a time; returns how many."""
    return connection.execute("DELETE FROM cache WHERE used_at < ?", (unused_since,)).rowcount


class Flights:
    """Lets one work of each key run at a time, of all runs of one event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[anyio.Lock, int]] = {}

    @asynccontextmanager
    async def only_one(self, key: str) -> AsyncGenerator[None]:
        """Wait for others of this key; the next one goes on when this block is left."""
        lock, num_users = self._locks.get(key, (anyio.Lock(), 0))
        self._locks[key] = (lock, num_users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, num_users = self._locks[key]
            if num_users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, num_users - 1)


def _result_of(row: tuple[object, ...]) -> CachedResult:
    key, place, parts, kind, body, tokens, created_at = row
    return CachedResult(
        cast("str", key),
        cast("str", place),
        json.loads(cast("str", parts)),
        cast("WorkKind", kind),
        json.loads(zlib.decompress(cast("bytes", body))),
        None if tokens is None else unpack_tokens(cast("bytes", tokens)),
        cast("float", created_at),
    )
