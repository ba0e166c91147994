"""One SQLite file of runs: written by few, read by many, safe against the end of any of them.

Starts, ends and events of a decision are one transaction under `synchronous=FULL`: once `write`
returns they are on the disk. What models have written so far goes through a second connection under
NORMAL, which does not wait for the disk; `synchronous` is a property of connections, so one file
serves both.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, cast

from flowforge.errors import EngineError
from flowforge.journal.contents import Encoder, decode, pack_tokens
from flowforge.journal.failures import BUSY_TIMEOUT_S, is_busy, told
from flowforge.journal.reader import JournalReader
from flowforge.journal.records import (
    Resumed,
    RunEnded,
    Told,
    Untold,
    WorkEnded,
    WorkStarted,
)
from flowforge.journal.schema import prepare
from flowforge.journal.step_cache import (
    MAX_CACHE_BYTES,
    find_result,
    forget_results,
    keep_result,
    results_at,
)
from flowforge.journal.transaction import transaction

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from flowforge.journal.records import Entry, Partial, RunBegun
    from flowforge.journal.step_cache import CachedResult
    from flowforge.language.program import JsonValue

_WAL_LIMIT_BYTES = 16_000_000
_BUSY_PAUSE_S = 0.005
_NUM_REMEMBERED_DIGESTS = 65_536


class Journal(JournalReader):
    """An open journal. Methods block; writers and readers may be different threads."""

    def __init__(self, path: Path) -> None:
        """Open the file at `path`, and make it and its folder if they are not there.

        Only its owner can read it: prompts and answers are private. Raises EngineError EN7xx.
        """
        self._known: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._num_ended: dict[str, int] = {}
        self._write_lock = threading.Lock()
        self._progress_lock = threading.Lock()
        with told(path), contextlib.ExitStack() as opened:
            _create(path)
            self._writer = _connect(path, opened, "FULL")
            prepare(self._writer, path)
            self._progress = _connect(path, opened, "NORMAL")
            super().__init__(path, _connect(path, opened, "NORMAL"))
            self._connections = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; idempotent."""
        with told(self.path):
            self._connections.close()

    # -- writing ----------------------------------------------------------------------------------

    def begin(self, run_id: str, begun: RunBegun) -> None:
        """Enter a new run."""
        encoder = Encoder()
        fields: dict[str, object] = {
            "inputs": dict(begun.inputs),
            "seed": begun.seed,
            "definitions": dict(begun.definitions),
            "options": dict(begun.options),
        }
        text = encoder.encode(fields)
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO runs (run_id, workflow, target, created_at, status, begun) "
                "VALUES (?, ?, ?, ?, 'running', ?)",
                (run_id, begun.workflow, begun.target, begun.created_at, text),
            )
            self._keep(connection, run_id, encoder)

    def write(self, batches: Sequence[tuple[str, Sequence[Entry]]]) -> None:
        """Make entries of runs durable, all or none, with one sync of the disk."""
        with self._transaction() as connection:
            for run_id, entries in batches:
                encoder = Encoder()
                for entry in entries:
                    self._write_entry(connection, run_id, entry, encoder)
                self._keep(connection, run_id, encoder)

    def write_partials(self, run_id: str, partials: Sequence[Partial]) -> None:
        """Take down what models have written so far, without waiting for the disk."""
        rows = [(run_id, part.path, part.turn, pack_tokens(part.tokens)) for part in partials]
        with told(self.path), self._progress_lock, transaction(self._progress):
            self._progress.executemany("INSERT OR REPLACE INTO partials VALUES (?,?,?,?)", rows)

    def copy_works(self, run_id: str, new_id: str, works: Iterable[tuple[str, int]]) -> None:
        """Give a new run works of another, by path and turn, as they ended."""
        columns = (
            "path, turn, kind, key, request, num_starts, started_at, ended_idx, ended_at, status, "
            "result, tokens"
        )
        with self._transaction() as connection:
            connection.executemany(
                f"INSERT INTO works (run_id, {columns}) SELECT ?, {columns} FROM works "
                "WHERE run_id = ? AND path = ? AND turn = ?",
                [(new_id, run_id, path, turn) for path, turn in works],
            )
            connection.execute(
                "INSERT OR IGNORE INTO uses SELECT ?, digest FROM uses WHERE run_id = ?",
                (new_id, run_id),
            )

    def remove(self, run_ids: Iterable[str]) -> None:
        """Forget runs, and every content that no other run uses."""
        with self._transaction() as connection:
            for run_id in run_ids:
                for table in ("runs", "works", "events", "partials", "uses"):
                    connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
            connection.execute("DELETE FROM contents WHERE digest NOT IN (SELECT digest FROM uses)")
            self._known.clear()

    # -- the step cache ---------------------------------------------------------------------------

    def cached(self, key: str, now: float) -> CachedResult | None:
        """The result kept under a key; notes that it was used."""
        with self._transaction() as connection:
            return find_result(connection, key, now)

    def cached_at(self, place: str) -> list[CachedResult]:
        """The results kept for a step, the newest first."""
        with self._transaction() as connection:
            return results_at(connection, place)

    def keep_result(self, kept: CachedResult, max_bytes: int = MAX_CACHE_BYTES) -> None:
        """Keep a result under its key; what does not fit any more is forgotten."""
        with self._transaction() as connection:
            keep_result(connection, kept, max_bytes)

    def forget_results(self, unused_since: float) -> int:
        """Forget the results that were used last before a time; returns how many."""
        with self._transaction() as connection:
            return forget_results(connection, unused_since)

    def shrink(self) -> None:
        """Give the space of removed runs back to the disk."""
        with told(self.path), self._write_lock:
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with told(self.path), self._write_lock:
            try:
                with transaction(self._writer):
                    yield self._writer
            except BaseException:
                self._num_ended.clear()
                self._known.clear()
                raise

    def _write_entry(
        self, connection: sqlite3.Connection, run_id: str, entry: Entry, encoder: Encoder
    ) -> None:
        match entry:
            case WorkStarted(path, turn, kind, key, request, at):
                connection.execute(
                    "INSERT INTO works "
                    "(run_id, path, turn, kind, key, request, num_starts, started_at) "
                    "VALUES (?, ?, ?, ?, ?, ?, 1, ?) ON CONFLICT DO UPDATE SET "
                    "kind = excluded.kind, key = excluded.key, "
                    "request = excluded.request, num_starts = num_starts + 1, ended_idx = NULL, "
                    "ended_at = NULL, status = NULL, result = NULL, tokens = NULL",
                    (run_id, path, turn, kind, key, encoder.encode(request), at),
                )
            case WorkEnded():
                self._write_end(connection, run_id, entry, encoder)
            case Told(seq, time_s, kind, path, fact):
                connection.execute(
                    "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
                    (run_id, seq, time_s, kind, path, encoder.encode(fact)),
                )
            case Untold(seqs):
                connection.executemany(
                    "DELETE FROM events WHERE run_id = ? AND seq = ?",
                    [(run_id, seq) for seq in seqs],
                )
            case Resumed(definitions):
                self._write_resumed(connection, run_id, definitions, encoder)
            case RunEnded(status, outcome, at):
                connection.execute(
                    "UPDATE runs SET status = ?, outcome = ?, ended_at = ? WHERE run_id = ?",
                    (status, encoder.encode(outcome), at, run_id),
                )
                self._num_ended.pop(run_id, None)

    def _write_end(
        self, connection: sqlite3.Connection, run_id: str, entry: WorkEnded, encoder: Encoder
    ) -> None:
        tokens = None if entry.tokens is None else pack_tokens(entry.tokens)
        ended_idx = self._next_end(connection, run_id)
        result = encoder.encode(entry.result)
        connection.execute(
            "INSERT INTO works (run_id, path, turn, kind, key, request, num_starts, started_at, "
            "ended_idx, ended_at, status, result, tokens) "
            "VALUES (?, ?, ?, ?, '', 'null', 1, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET ended_idx = excluded.ended_idx, "
            "ended_at = excluded.ended_at, status = excluded.status, result = excluded.result, "
            "tokens = excluded.tokens",
            (
                *(run_id, entry.path, entry.turn, entry.kind, entry.at),
                *(ended_idx, entry.at, entry.status, result, tokens),
            ),
        )
        connection.execute(
            "DELETE FROM partials WHERE run_id = ? AND path = ? AND turn = ?",
            (run_id, entry.path, entry.turn),
        )

    def _write_resumed(
        self,
        connection: sqlite3.Connection,
        run_id: str,
        definitions: object,
        encoder: Encoder,
    ) -> None:
        (text,) = connection.execute(
            "SELECT begun FROM runs WHERE run_id = ?", (run_id,)
        ).fetchone()
        begun = cast("dict[str, JsonValue]", decode(text, self._load))
        renewed = encoder.encode({**begun, "definitions": definitions})
        connection.execute(
            "UPDATE runs SET status = 'running', ended_at = NULL, outcome = NULL, "
            "num_resumes = num_resumes + 1, begun = ? WHERE run_id = ?",
            (renewed, run_id),
        )

    def _next_end(self, connection: sqlite3.Connection, run_id: str) -> int:
        if run_id not in self._num_ended:
            query = "SELECT MAX(ended_idx) FROM works WHERE run_id = ?"
            last: int | None = connection.execute(query, (run_id,)).fetchone()[0]
            self._num_ended[run_id] = 0 if last is None else last + 1
        ended_idx = self._num_ended[run_id]
        self._num_ended[run_id] = ended_idx + 1
        return ended_idx

    def _keep(self, connection: sqlite3.Connection, run_id: str, encoder: Encoder) -> None:
        new = [item for item in encoder.contents.items() if (run_id, item[0]) not in self._known]
        connection.executemany("INSERT OR IGNORE INTO contents VALUES (?, ?)", new)
        uses = [(run_id, digest) for digest, _ in new]
        connection.executemany("INSERT OR IGNORE INTO uses VALUES (?, ?)", uses)
        self._known.update(dict.fromkeys(uses))
        while len(self._known) > _NUM_REMEMBERED_DIGESTS:
            self._known.popitem(last=False)


def _create(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise EngineError(
            "EN704",
            f"the journal {str(path)!r} cannot be opened: {error.strerror or error}",
            help="choose another file by --journal, or run without one by --no-journal",
        ) from error


def _connect(path: Path, opened: contextlib.ExitStack, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    opened.callback(connection.close)
    _keep_log_ahead(connection)
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
    return connection


def _keep_log_ahead(connection: sqlite3.Connection) -> None:
    """Turn the write-ahead log on, for good.

    Where two open a new file at once, one of them holds it meanwhile, and SQLite, which waits for
    locks otherwise, tells the other at once that it is busy.
    """
    until = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > until:
                raise
        time.sleep(_BUSY_PAUSE_S)
