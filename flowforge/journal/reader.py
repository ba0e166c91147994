"""What is in a journal, read back; beside whoever writes to it, and without waiting for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, cast

from flowforge.errors import EngineError, WorkflowError
from flowforge.journal.contents import decoder, references_of, unpack_tokens
from flowforge.journal.failures import told
from flowforge.journal.records import RunBegun, RunRow, RunSummary, Told, WorkRow
from flowforge.language.diagnostics import did_you_mean

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from flowforge.language.program import JsonValue

_NUM_CACHED_BODIES = 4_096
_RUN_COLUMNS = "run_id, begun, status, ended_at, num_resumes, outcome"
_WORK_COLUMNS = (
    "path, turn, kind, key, request, num_starts, started_at, ended_idx, ended_at, status, result, "
    "tokens"
)


class JournalReader:
    """Reads through one connection. Methods block, and may be called from any thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """connection: to the file at `path`, prepared; closed by whoever opened it."""
        self.path = path
        self._reader = connection
        self._read_lock = threading.Lock()
        self._bodies: OrderedDict[bytes, bytes] = OrderedDict()
        self._decoded = decoder(self._load)

    def runs(self, *, limit: int | None = None) -> list[RunSummary]:
        """Runs, the newest first."""
        rows = self._query(
            "SELECT run_id, workflow, target, status, created_at, ended_at, num_resumes FROM runs "
            "ORDER BY created_at DESC, run_id LIMIT ?",
            (-1 if limit is None else limit,),
        )
        return [RunSummary(*row) for row in rows]

    def _help_for_name(self, run_id: str, begun_so: list[str]) -> str:
        if begun_so:
            return f"say more of it: {', '.join(begun_so)}, …"
        newest = "SELECT run_id FROM runs ORDER BY created_at DESC LIMIT 1000"
        known = [name for (name,) in self._query(newest, ())]
        return did_you_mean(run_id, known, "'flowforge runs' lists them") or ""

    def run(self, run_id: str) -> RunRow:
        """One run. run_id: whole, or a beginning that only one run has.

        Raises WorkflowError WF701 where there is none, or more than one.
        """
        columns = f"{_RUN_COLUMNS}, workflow, target, created_at"
        query = f"SELECT {columns} FROM runs WHERE substr(run_id, 1, ?) = ? LIMIT 2"
        rows = self._query(query, (len(run_id), run_id))
        exact = [row for row in rows if row[0] == run_id]
        found = exact or rows
        if len(found) != 1 or not run_id:
            some = "no run" if not found else "more than one run"
            raise WorkflowError(
                "WF701",
                f"{some} of the journal {str(self.path)!r} is called {run_id!r}",
                help=self._help_for_name(run_id, [row[0] for row in found]),
            )
        name, begun, status, ended_at, num_resumes, outcome, workflow, target, created_at = found[0]
        fields = cast("dict[str, JsonValue]", self._decoded(begun))
        return RunRow(
            name,
            RunBegun(
                workflow,
                target,
                cast("dict[str, JsonValue]", fields["inputs"]),
                cast("int", fields["seed"]),
                cast("dict[str, str]", fields["definitions"]),
                cast("dict[str, JsonValue]", fields["options"]),
                created_at,
            ),
            status,
            ended_at,
            num_resumes,
            None if outcome is None else self._decoded(outcome),
        )

    def find_run(self, run_id: str) -> RunRow | None:
        """The run of exactly this name, if there is one."""
        found = self._query("SELECT 1 FROM runs WHERE run_id = ?", (run_id,))
        return self.run(run_id) if found else None

    def works(self, run_id: str) -> list[WorkRow]:
        """All works of a run, in order of their starts."""
        query = (
            f"SELECT {_WORK_COLUMNS} FROM works WHERE run_id = ? ORDER BY started_at, path, turn"
        )
        return [self._work(row) for row in self._query(query, (run_id,))]

    def works_at(self, run_id: str, path: str) -> list[WorkRow]:
        """The works of one path, turn by turn."""
        query = f"SELECT {_WORK_COLUMNS} FROM works WHERE run_id = ? AND path = ? ORDER BY turn"
        return [self._work(row) for row in self._query(query, (run_id, path))]

    def open_works(self, run_id: str) -> list[WorkRow]:
        """The works of a run that have started and not ended, in order of their starts."""
        where = "run_id = ? AND status IS NULL ORDER BY started_at, path, turn"
        query = f"SELECT {_WORK_COLUMNS} FROM works WHERE {where}"
        return [self._work(row) for row in self._query(query, (run_id,))]

    def ended_works(self, run_id: str) -> Iterator[WorkRow]:
        """The works of a run that have ended, in order of their ends; read as they are asked for.

        request, tokens: left out; `works_at` has them.
        """
        columns = _WORK_COLUMNS.replace("request", "NULL").replace("tokens", "NULL")
        query = (
            f"SELECT {columns} FROM works WHERE run_id = ? AND ended_idx >= ? "
            "ORDER BY ended_idx LIMIT 500"
        )
        start = 0
        while rows := self._query(query, (run_id, start)):
            self._load_all(row[10] for row in rows if row[10] is not None)
            for row in rows:
                yield self._work(row)
            start = rows[-1][7] + 1

    def events(self, run_id: str, *, start: int = 0) -> Iterator[Told]:
        """The events of a run from number `start` on; read as they are asked for."""
        query = (
            "SELECT seq, time_s, kind, path, fact FROM events WHERE run_id = ? AND seq >= ? "
            "ORDER BY seq LIMIT 500"
        )
        while rows := self._query(query, (run_id, start)):
            self._load_all(row[4] for row in rows)
            for seq, time_s, kind, path, fact in rows:
                yield Told(seq, time_s, kind, path, self._decoded(fact))
            start = rows[-1][0] + 1

    def event_keys(self, run_id: str) -> list[tuple[int, float, str, str | None]]:
        """Number, time, kind and path of every event of a run."""
        query = "SELECT seq, time_s, kind, path FROM events WHERE run_id = ? ORDER BY seq"
        return self._query(query, (run_id,))

    def partials(self, run_id: str) -> dict[tuple[str, int], tuple[int, ...]]:
        """What models had written in works that have not ended, by path and turn."""
        query = "SELECT path, turn, tokens FROM partials WHERE run_id = ?"
        rows = self._query(query, (run_id,))
        return {(path, turn): unpack_tokens(tokens) for path, turn, tokens in rows}

    def require_sound(self) -> None:
        """Read the whole file. Raises EngineError EN703 when something in it is damaged."""
        problems = [row[0] for row in self._query("PRAGMA quick_check(1)", ())]
        if problems != ["ok"]:
            raise EngineError(
                "EN703",
                f"the journal {str(self.path)!r} is damaged: {problems[0]}",
                help="nothing was changed; keep a copy, and recover it with the sqlite3 tool's "
                "'.recover'",
            )

    def _work(self, row: tuple[Any, ...]) -> WorkRow:
        (path, turn, kind, key, request, num_starts, started_at, idx, ended_at, status, *ended) = (
            row
        )
        result, tokens = ended
        return WorkRow(
            path=path,
            turn=turn,
            kind=kind,
            key=key,
            request=None if request is None else self._decoded(request),
            num_starts=num_starts,
            started_at=started_at,
            ended_idx=idx,
            ended_at=ended_at,
            status=status,
            result=None if result is None else self._decoded(result),
            tokens=None if tokens is None else unpack_tokens(tokens),
        )

    def _load(self, digest: bytes) -> bytes:
        if digest not in self._bodies:
            rows = self._query("SELECT body FROM contents WHERE digest = ?", (digest,))
            if not rows:
                raise EngineError(
                    "EN703",
                    f"the journal {str(self.path)!r} is damaged: content {digest.hex()} is missing",
                )
            self._keep_body(digest, rows[0][0])
        return self._bodies[digest]

    def _load_all(self, texts: Iterable[str]) -> None:
        """Read at once what encoded texts refer to."""
        wanted = set[bytes]().union(*map(references_of, texts)) - self._bodies.keys()
        # SQLite takes no more than 32,766 values, and older ones 999.
        missing = list(wanted)
        for start in range(0, len(missing), 500):
            digests = tuple(missing[start : start + 500])
            places = ", ".join("?" * len(digests))
            query = f"SELECT digest, body FROM contents WHERE digest IN ({places})"
            for digest, body in self._query(query, digests):
                self._keep_body(digest, body)

    def _keep_body(self, digest: bytes, body: bytes) -> None:
        self._bodies[digest] = body
        if len(self._bodies) > _NUM_CACHED_BODIES:
            self._bodies.popitem(last=False)

    # Any: rows have the types of their tables, which no checker knows.
    def _query(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with told(self.path), self._read_lock:
            return self._reader.execute(query, values).fetchall()
