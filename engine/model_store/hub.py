"""Models of the Hugging Face hub: which revision an id means, and its files."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from flowforge.engine.model_store.store import Progress

_TIMEOUT_S = 5.0
_POLL_S = 0.1
_WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer*", "merges.txt", "vocab.txt")
# Subfolders hold other formats; consolidated files are the same weights a second time.
_UNWANTED = ("*/*", "consolidated*")


@dataclass(frozen=True, slots=True)
class HubRevision:
    """One commit of a hub model, and the bytes of the files that are fetched from it."""

    name: str
    commit: str
    num_bytes: int


def find_revision(name: str, revision: str | None) -> HubRevision:
    """Ask the hub what an id means now.

    Raises EngineError EN102 (no such model or revision, or not for this user), EN103 (the hub
    cannot be reached) or EN124 (the model has no safetensors).
    """
    from huggingface_hub import HfApi

    with _hub_errors(name, revision):
        info = HfApi().model_info(name, revision=revision, timeout=_TIMEOUT_S, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    wanted = [file for file in sizes if _matches(file, _WANTED) and not _matches(file, _UNWANTED)]
    if not any(file.endswith(".safetensors") for file in wanted):
        raise EngineError(
            "EN124",
            f"the hub model {name!r} has no safetensors files; pickles are refused",
            help="choose a model, or a conversion of it, in safetensors",
        )
    return HubRevision(name, info.sha or "main", sum(sizes[file] for file in wanted))


def fetch_hub_model(revision: HubRevision, folder: Path, progress: Progress) -> None:
    """Fill folder with the files of one revision. Raises EngineError EN102 or EN103."""
    from huggingface_hub import snapshot_download

    with _hub_errors(revision.name, revision.commit), _watched(revision, folder, progress):
        snapshot_download(
            revision.name,
            revision=revision.commit,
            local_dir=folder,
            allow_patterns=[*_WANTED],
            ignore_patterns=[*_UNWANTED],
            etag_timeout=_TIMEOUT_S,
        )


def _matches(file: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(file, pattern) for pattern in patterns)


@contextmanager
def _hub_errors(name: str, revision: str | None) -> Generator[None]:
    from huggingface_hub import errors

    # The HTTP library changed between releases; its root class is what their errors stand on.
    http_error: Any = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except errors.GatedRepoError as error:
        raise EngineError(
            "EN102",
            f"the hub model {name!r} is gated and this user has no access",
            help=f"ask for access at https://huggingface.co/{name}, then run `hf auth login`",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise EngineError(
            "EN102",
            f"the hub model {name!r} has no revision {revision!r}",
            help="name a branch, tag or commit after the @",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise EngineError(
            "EN102",
            f"there is no model {name!r} on the Hugging Face hub",
            help="check the spelling; a private model needs `hf auth login`",
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise EngineError(
            "EN103",
            f"cannot ask the Hugging Face hub for {name!r}: HF_HUB_OFFLINE switches it off",
            help="unset HF_HUB_OFFLINE, or give a model directory with --model DIR",
        ) from error
    except (OSError, http_error) as error:
        raise EngineError(
            "EN103",
            f"cannot reach the Hugging Face hub for {name!r}: {_first_line(error)}",
            help="check the connection; HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror; or give a "
            "model directory with --model DIR",
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _watched(revision: HubRevision, folder: Path, progress: Progress) -> Generator[None]:
    """Report the folder's size while the block runs, in place of the hub client's own bars."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    is_done = threading.Event()

    def report() -> None:
        while not is_done.wait(_POLL_S):
            done_bytes = min(_folder_bytes(folder), revision.num_bytes)
            progress(f"fetching {revision.name}", done_bytes, revision.num_bytes)

    were_disabled = are_progress_bars_disabled()
    watcher = threading.Thread(target=report, name="fetch-progress", daemon=True)
    disable_progress_bars()
    watcher.start()
    try:
        yield
    finally:
        is_done.set()
        watcher.join()
        if not were_disabled:
            enable_progress_bars()


def _folder_bytes(folder: Path) -> int:
    num_bytes = 0
    for path in folder.rglob("*"):
        try:
            num_bytes += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # the client renames finished files
    return num_bytes
