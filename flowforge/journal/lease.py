"""Who has a run: at most one process at a time, for as long as it lives."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from flowforge.journal.reader import JournalReader
    from flowforge.journal.records import RunRow, RunStatus, RunSummary

Standing: TypeAlias = "RunStatus | Literal['interrupted']"
"""A run's status, and what no journal can know by itself: that nobody goes on with it."""


class Lease:
    """The right to go on with one run.

    The kernel holds it (`flock`), and drops it with the process that has it: after `kill -9` a run
    is free at once, and one whose owner waits for days is never taken from it.
    """

    def __init__(self, journal: Path, run_id: str) -> None:
        """Take the run. Raises EngineError EN706 naming the process that has it."""
        self._file = _lock_file(journal, run_id)
        self._descriptor: int | None = None
        # A file that its owner removed between our opening and locking it is nobody's any more.
        while not _is_named(descriptor := self._locked(run_id), self._file):
            os.close(descriptor)
        self._descriptor = descriptor
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError as error:
            self.release()
            raise _not_made(self._file, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _locked(self, run_id: str) -> int:
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _not_made(self._file, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise EngineError(
                "EN706",
                f"run {run_id!r} is going on in process {owner or 'unknown'}",
                help="wait for its end, or stop that process",
            ) from None
        return descriptor

    def release(self) -> None:
        """Let others have the run; idempotent."""
        if self._descriptor is not None:
            # Removed while it is still held: whoever opened it meanwhile finds a file of no name.
            self._file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def owner_of(journal: Path, run_id: str) -> int | None:
    """The process that has a run now, or None."""
    try:
        descriptor = os.open(_lock_file(journal, run_id), os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 32).decode("ascii", "replace").strip()
        return int(owner) if owner.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def state_of(journal: JournalReader, run: RunRow | RunSummary) -> Standing:
    """The word for where a run stands: one that is not over and that nobody has was cut."""
    if run.status != "running":
        return run.status
    return "running" if owner_of(journal.path, run.run_id) is not None else "interrupted"


def _is_named(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _not_made(file: Path, error: OSError) -> EngineError:
    name = f"the lock {str(file)!r}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return EngineError(
            "EN702",
            f"{name} cannot be written: no space is left on its disk",
            help="make room, for example by 'flowforge runs prune', and give the command again",
        )
    return EngineError(
        "EN704",
        f"{name} cannot be made: {error.strerror or error}",
        help="check that the journal's folder can be written to, or choose another file by "
        "--journal",
    )


def _lock_file(journal: Path, run_id: str) -> Path:
    return journal.with_name(f"{journal.name}.locks") / f"{run_id}.lock"
