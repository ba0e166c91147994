"""Models given as GGUF files: converted once, kept in the store, found again by their content."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from flowforge.engine.models.quantized import CONVERSION
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.model_store.store import ModelLocation, ModelStore, Progress

_SAMPLE_BYTES = 1 << 18
_NUM_SAMPLES = 64


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that a path means: itself, or the only one of a folder without config.json.

    None when the path means something else. Raises EngineError EN101 for a folder with several.
    """
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        raise EngineError(
            "EN101",
            f"the folder {str(path)!r} holds {len(files)} GGUF files, expected one",
            help=f"give one of them: {files[0]}",
        )
    return files[0] if files else None


def converted_location(path: Path, store: ModelStore) -> ModelLocation:
    """Where the conversion of a file lies, or would lie, in the store."""
    return store.directory_of(path.stem, _fingerprint(path), "gguf")


def convert_into_store(path: Path, store: ModelStore, progress: Progress) -> ModelLocation:
    """The converted model of a file, made now if it is not there.

    Raises EngineError EN105 (disk), EN131 or EN132 (no GGUF file, or one that is not supported).
    """
    location = converted_location(path, store)
    if location.directory.is_dir():
        return location
    # Needs numpy; imported here so that listing models stays fast.
    from flowforge.engine.models.gguf_conversion import convert_gguf, converted_bytes

    def convert(folder: Path) -> None:
        progress(f"converting {path.name}", 0, None)
        convert_gguf(path, folder)

    num_bytes = converted_bytes(path)
    return store.ensure(location, convert, num_bytes=num_bytes, progress=progress)


def _fingerprint(path: Path) -> str:
    """Of the size and of parts spread over the file: files of gigabytes are known in no time."""
    num_bytes = path.stat().st_size
    digest = hashlib.sha256(f"{CONVERSION} {num_bytes} ".encode())
    with path.open("rb") as file:
        for idx in range(_NUM_SAMPLES):
            file.seek(max(0, num_bytes - _SAMPLE_BYTES) * idx // (_NUM_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
