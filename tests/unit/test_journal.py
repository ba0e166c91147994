"""The journal's file: what is written is there, once; what cannot be is refused with a reason."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowforge.errors import EngineError, WorkflowError
from flowforge.journal.contents import Encoder, decode, pack_tokens, unpack_tokens
from flowforge.journal.journal import Journal
from flowforge.journal.lease import Lease, owner_of
from flowforge.journal.records import (
    Partial,
    RunBegun,
    RunEnded,
    Told,
    Untold,
    WorkEnded,
    WorkStarted,
)
from flowforge.journal.schema import APPLICATION_ID, MIGRATIONS, VERSION
from flowforge.journal.writer import JournalWriter

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from flowforge.language.program import JsonValue

BEGUN = RunBegun("w", "/w.yaml", {"topic": "trains"}, 7, {"a": "hash"}, {"model": None}, 1000.0)
LONG = "a long text that many steps share, for example a system prompt. " * 20

texts = st.text(max_size=200)
names = st.sampled_from(["a", "~", "~l", "~~x"])
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=80)
        | st.dictionaries(st.sampled_from(["a", "~", "~l", "~~x"]), inner)
    ),
    max_leaves=120,
)


def started(path: str, at: float = 1.0) -> WorkStarted:
    return WorkStarted(path, 0, "generation", "key", {"said": LONG}, at)


def ended(path: str, at: float = 2.0, text: str = "answer") -> WorkEnded:
    return WorkEnded(path, 0, "generation", "done", {"text": text}, (1, 2, 70_000), at)


@pytest.fixture
def journal(tmp_path: Path) -> Generator[Journal]:
    with Journal(tmp_path / "state" / "runs.db") as opened:
        yield opened


# -- contents --------------------------------------------------------------------------------------


@given(json_values)
def test_every_json_value_comes_back_as_it_was(value: JsonValue) -> None:
    encoder = Encoder()
    text = encoder.encode(value)

    assert value == decode(text, encoder.contents.__getitem__)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_every_token_id_comes_back_as_it_was(token_ids: list[int]) -> None:
    assert tuple(token_ids) == unpack_tokens(pack_tokens(token_ids))


def test_a_text_that_stands_in_many_places_is_stored_once(journal: Journal) -> None:
    journal.begin("r", BEGUN)
    journal.write([("r", [started(f"e[{idx}]/d") for idx in range(100)])])
    with sqlite3.connect(journal.path) as file:
        (num_contents,) = file.execute("SELECT COUNT(*) FROM contents").fetchone()
    file.close()

    assert 1 == num_contents
    assert {LONG} == {work.request["said"] for work in journal.works("r")}  # type: ignore[index,call-overload]


def test_a_list_that_grows_item_by_item_is_stored_in_pieces() -> None:
    encoder = Encoder()
    size = 0
    for num_items in range(300):
        size += len(encoder.encode([f"item {idx}" for idx in range(num_items)]))
    size += sum(map(len, encoder.contents.values()))

    written_out = sum(len(f'"item {idx}",') for num in range(300) for idx in range(num))
    assert size < written_out / 2


# -- rows ------------------------------------------------------------------------------------------


def test_a_run_is_read_back_as_it_was_begun_and_ended(journal: Journal) -> None:
    journal.begin("r", BEGUN)
    journal.write([("r", [RunEnded("done", {"report": LONG}, 2000.0)])])
    run = journal.run("r")

    assert (BEGUN, "done", 2000.0, {"report": LONG}) == (
        run.begun,
        run.status,
        run.ended_at,
        run.outcome,
    )


def test_works_come_in_the_order_of_their_ends(journal: Journal) -> None:
    journal.begin("r", BEGUN)
    journal.write([("r", [started("a"), started("b"), started("c")])])
    journal.write([("r", [ended("b"), ended("a")])])

    assert [("b", 0), ("a", 1)] == [
        (work.path, work.ended_idx) for work in journal.ended_works("r")
    ]
    assert (1, 2, 70_000) == journal.works_at("r", "a")[0].tokens
    assert [None] == [work.status for work in journal.works_at("r", "c")]


def test_a_work_that_starts_again_is_open_again_and_counts_its_starts(journal: Journal) -> None:
    journal.begin("r", BEGUN)
    journal.write([("r", [started("a"), ended("a")])])
    journal.write([("r", [started("a", at=5.0)])])
    (work,) = journal.works_at("r", "a")

    assert (2, None, None) == (work.num_starts, work.status, work.result)


def test_ends_are_numbered_on_by_the_next_process(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.db") as first:
        first.begin("r", BEGUN)
        first.write([("r", [ended("a"), ended("b")])])
    with Journal(tmp_path / "j.db") as second:
        second.write([("r", [ended("c")])])

        assert [0, 1, 2] == [work.ended_idx for work in second.ended_works("r")]


def test_events_come_back_in_order_and_can_be_taken_back(journal: Journal) -> None:
    journal.begin("r", BEGUN)
    told = [Told(seq, seq / 10, "step_started", f"s{seq}", {"verb": "gen"}) for seq in (0, 3, 7)]
    journal.write([("r", [*told, Untold((3,))])])

    assert [told[0], told[2]] == list(journal.events("r"))
    assert [told[2]] == list(journal.events("r", start=1))


def test_what_a_model_has_written_is_kept_until_its_work_ends(journal: Journal) -> None:
    journal.begin("r", BEGUN)
    journal.write([("r", [started("a"), started("b")])])
    journal.write_partials("r", [Partial("a", 0, (1, 2)), Partial("b", 0, (3,))])
    journal.write_partials("r", [Partial("a", 0, (1, 2, 5))])
    journal.write([("r", [ended("b")])])

    assert {("a", 0): (1, 2, 5)} == journal.partials("r")


def test_a_run_is_found_by_the_beginning_of_its_name_if_only_one_has_it(journal: Journal) -> None:
    for name in ("1130-0956-aa", "1130-0957-bb", "1201-0000-cc"):
        journal.begin(name, BEGUN)

    assert "1201-0000-cc" == journal.run("12").run_id
    with pytest.raises(WorkflowError, match="more than one run"):
        journal.run("1130")
    with pytest.raises(WorkflowError, match="no run of the journal"):
        journal.run("x")


def test_removing_a_run_frees_what_no_other_run_uses(journal: Journal) -> None:
    for name in ("r1", "r2"):
        journal.begin(name, BEGUN)
        journal.write([(name, [started("a"), ended("a", text=f"{name} {LONG}")])])
    journal.remove(["r1"])

    assert ["r2"] == [run.run_id for run in journal.runs()]
    (work,) = journal.works_at("r2", "a")
    assert ({"said": LONG}, {"text": f"r2 {LONG}"}) == (work.request, work.result)
    with sqlite3.connect(journal.path) as file:
        assert (2,) == file.execute("SELECT COUNT(*) FROM contents").fetchone()
    file.close()


def test_a_failed_write_leaves_nothing_of_its_batch(journal: Journal) -> None:
    journal.begin("r", BEGUN)
    twice = Told(0, 0.0, "run_started", None, {})
    with pytest.raises(EngineError, match="EN704"):
        journal.write([("r", [ended("a"), twice, twice])])
    journal.write([("r", [ended("b")])])

    assert [("b", 0)] == [(work.path, work.ended_idx) for work in journal.ended_works("r")]


# -- the file --------------------------------------------------------------------------------------


def test_only_the_owner_can_read_a_journal(journal: Journal) -> None:
    assert 0o600 == journal.path.stat().st_mode & 0o777


def test_a_journal_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    Journal(path).close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()

    with pytest.raises(EngineError, match="version 99") as caught:
        Journal(path)
    assert "EN705" == caught.value.code


def test_a_journal_of_an_older_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with Journal(tmp_path / "new.db") as made:
        made.begin("r", BEGUN)
    with closing(sqlite3.connect(path)) as file, closing(sqlite3.connect(made.path)) as new:
        file.executescript(MIGRATIONS[0])
        for table in ("runs", "contents", "uses"):
            for row in new.execute(f"SELECT * FROM {table}"):
                places = ", ".join("?" * len(row))
                file.execute(f"INSERT INTO {table} VALUES ({places})", row)
        file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        file.execute("PRAGMA user_version = 1")
        file.commit()

    with Journal(path) as journal:
        assert BEGUN == journal.run("r").begun
        assert journal.cached("no such key", 0.0) is None
    with closing(sqlite3.connect(path)) as file:
        assert (VERSION,) == file.execute("PRAGMA user_version").fetchone()


def test_a_journal_that_another_process_locks_is_told_as_locked_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowforge.journal.journal.BUSY_TIMEOUT_S", 0.01)
    path = tmp_path / "runs.db"
    with Journal(path) as journal:
        journal.begin("r", BEGUN)
        journal.write([("r", [started("a")])])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(EngineError, match="is locked") as caught:
                journal.write([("r", [ended("a")])])
            assert ["a"] == [work.path for work in journal.open_works("r")]
            other.execute("ROLLBACK")
        journal.write([("r", [ended("a")])])

        assert "EN701" == caught.value.code
        assert ["a"] == [work.path for work in journal.ended_works("r")]


def test_another_programs_database_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE customers (name TEXT)")
    file.close()

    with pytest.raises(EngineError, match="another program") as caught:
        Journal(path)
    assert "EN703" == caught.value.code


def test_a_damaged_journal_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    with Journal(path) as journal:
        journal.begin("r", BEGUN)
        journal.write([("r", [ended(f"s{idx}", text=f"{idx} {LONG}") for idx in range(400)])])
    torn = bytearray(path.read_bytes())
    torn[8192:40960] = b"\x99" * (40960 - 8192)
    path.write_bytes(torn)

    with pytest.raises(EngineError) as caught, Journal(path) as journal:
        journal.require_sound()
    assert "EN703" == caught.value.code
    assert bytes(torn) == path.read_bytes()


def test_a_torn_last_commit_is_as_if_it_had_not_been(tmp_path: Path) -> None:
    path, copy = tmp_path / "j.db", tmp_path / "copy.db"
    journal = Journal(path)
    journal.begin("r", BEGUN)
    journal.write([("r", [ended("a")])])
    whole = path.with_name("j.db-wal").stat().st_size
    journal.write([("r", [ended("b", text=LONG)])])
    # What a power cut may leave: the file, and a log of which the last commit is half there.
    copy.write_bytes(path.read_bytes())
    log = path.with_name("j.db-wal").read_bytes()
    copy.with_name("copy.db-wal").write_bytes(log[: (whole + len(log)) // 2])
    journal.close()

    with Journal(copy) as torn:
        torn.require_sound()
        assert ["a"] == [work.path for work in torn.ended_works("r")]


def test_a_journal_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="cannot be opened") as caught:
        Journal(tmp_path / "file" / "runs.db")
    assert "EN704" == caught.value.code


def test_a_full_disk_stops_the_writer_and_loses_nothing_that_was_there(tmp_path: Path) -> None:
    """REL-010, with SQLite's own limit in the place of a small disk."""
    with Journal(tmp_path / "j.db") as journal:
        journal.begin("r", BEGUN)
        journal.write([("r", [ended("a")])])
        disk = journal._writer  # pyright: ignore[reportPrivateUsage] # no public way to be full
        disk.execute("PRAGMA max_page_count = 20")
        big = "".join(map(chr, range(1000, 60_000)))
        with pytest.raises(EngineError, match="no space is left") as caught:
            journal.write([("r", [ended("b", text=big), RunEnded("done", {}, 1.0)])])
        assert "EN702" == caught.value.code
        assert ["a"] == [work.path for work in journal.ended_works("r")]

        disk.execute("PRAGMA max_page_count = 100000")
        journal.write([("r", [ended("b", text=big)])])
        assert ["a", "b"] == [work.path for work in journal.ended_works("r")]


def test_two_writers_and_a_reader_do_not_disturb_each_other(tmp_path: Path) -> None:
    """REL-014."""
    failures: list[Exception] = []

    def write(run_id: str) -> None:
        try:
            with Journal(tmp_path / "j.db") as journal:
                journal.begin(run_id, BEGUN)
                for idx in range(200):
                    journal.write([(run_id, [ended(f"s{idx}")])])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("r1", "r2")]
    for thread in threads:
        thread.start()
    with Journal(tmp_path / "j.db") as reader:
        while any(thread.is_alive() for thread in threads):
            reader.runs()
        for thread in threads:
            thread.join()

        assert not failures
        assert [200, 200] == [len(reader.works(name)) for name in ("r1", "r2")]


def test_many_that_open_a_new_journal_at_once_all_get_it(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def open_it(path: Path, start: threading.Barrier) -> None:
        start.wait()
        try:
            Journal(path).close()
        except Exception as error:
            failures.append(error)

    for idx in range(20):
        start = threading.Barrier(8)
        place = tmp_path / f"{idx}.db"
        threads = [threading.Thread(target=open_it, args=(place, start)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert not failures


# -- who has a run ---------------------------------------------------------------------------------


def test_a_run_has_one_owner_at_a_time(tmp_path: Path) -> None:
    """REL-011, REL-013: how old a lock is plays no part."""
    path = tmp_path / "j.db"
    with Lease(path, "r"):
        assert owner_of(path, "r")
        with pytest.raises(EngineError, match="is going on in process") as caught:
            Lease(path, "r")
        with Lease(path, "other"):
            pass
    assert "EN706" == caught.value.code
    assert owner_of(path, "r") is None
    Lease(path, "r").release()


def test_a_lock_that_its_owner_removes_while_another_asks_for_it_has_one_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j.db"
    before = Lease(path, "r")
    flock = fcntl.flock

    def released_first(descriptor: int, operation: int) -> None:
        before.release()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", released_first)

    with Lease(path, "r"), pytest.raises(EngineError, match="is going on in process"):
        Lease(path, "r")


def test_a_write_that_sqlite_has_taken_back_itself_tells_why(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.db") as journal:
        progress = journal._progress  # pyright: ignore[reportPrivateUsage] # no public way to fail
        progress.execute(
            "CREATE TEMP TRIGGER refuse BEFORE INSERT ON partials "
            "BEGIN SELECT RAISE(ROLLBACK, 'refused by a trigger'); END"
        )

        with pytest.raises(EngineError, match="refused by a trigger"):
            journal.write_partials("r", [Partial("a", 0, (1, 2))])

        progress.execute("DROP TRIGGER refuse")
        journal.write_partials("r", [Partial("a", 0, (1, 2))])
        assert {("a", 0): (1, 2)} == journal.partials("r")


def test_a_lock_for_which_the_disk_has_no_room_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REL-010."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "j.db"
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        with pytest.raises(EngineError, match="no space is left") as caught:
            Lease(path, "r")

    assert "EN702" == caught.value.code
    with Lease(path, "r"):
        assert os.getpid() == owner_of(path, "r")


# -- group commit ----------------------------------------------------------------------------------


async def test_what_ends_together_is_synced_together(journal: Journal) -> None:
    journal.begin("r", BEGUN)
    writer = JournalWriter(journal)
    async with anyio.create_task_group() as tasks:
        for idx in range(32):
            tasks.start_soon(writer.commit, "r", [ended(f"explore[{idx}]/draft")])

    assert 32 == len(list(journal.ended_works("r")))
    assert writer.num_commits <= 3


async def test_a_commit_that_fails_is_told_to_everybody_who_waits_for_it(journal: Journal) -> None:
    journal.begin("r", BEGUN)
    told = Told(0, 0.0, "run_started", None, {})
    journal.write([("r", [told])])
    writer = JournalWriter(journal)
    codes: list[str] = []

    async def tell_again() -> None:
        try:
            await writer.commit("r", [ended("a"), told])
        except EngineError as error:
            codes.append(error.code)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(tell_again)
    await writer.commit("r", [ended("b")])

    assert ["EN704"] * 3 == codes
    assert ["b"] == [work.path for work in journal.ended_works("r")]
