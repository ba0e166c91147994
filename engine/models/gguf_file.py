"""A GGUF file opened for reading: its metadata and tensors, with errors that name what is wrong."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


class GgufFile:
    """One GGUF file, mapped into memory. Source of the format: llama.cpp's `gguf` package (MIT)."""

    def __init__(self, path: Path) -> None:
        """Raises EngineError EN131 for a file that is no GGUF file or not a whole one."""
        self.path = path
        reader = _open(path)
        self._reader = reader
        self.tensors: dict[str, Any] = {str(tensor.name): tensor for tensor in reader.tensors}

    def find(self, key: str) -> Any:
        """The value of a metadata key, None when the file does not have it.

        Raises EngineError EN131 for one that cannot be read, as a text that is no UTF-8.
        """
        field = self._reader.get_field(key)
        with self.taking(f"metadata key {key!r}"):
            return None if field is None else field.contents()

    def require(self, key: str) -> Any:
        """The value of a metadata key. Raises EngineError EN131 when the file does not have it."""
        value = self.find(key)
        if value is None:
            raise self.broken(f"metadata key {key!r} is missing")
        return value

    @contextmanager
    def taking(self, what: str) -> Generator[None]:
        """Turn what fails on a damaged value of the file into EngineError EN131.

        One wrong byte can break any use of any value, and `tokenizers` raises plain exceptions.
        """
        try:
            yield
        except (EngineError, OSError, MemoryError):
            raise
        except Exception as error:
            raise self.broken(f"{what} is damaged ({error})") from error

    def broken(self, reason: str) -> EngineError:
        """What to raise for content that cannot be what the file's maker wrote."""
        return _broken(self.path, reason)

    def unsupported(self, key: str, found: object, supported: str) -> EngineError:
        """What to raise for content that the format allows and the engine does not."""
        return EngineError(
            "EN132",
            f"GGUF file {str(self.path)!r} has {key} {found!r}, supported: {supported}",
            help="use the model's Hugging Face directory (config.json and safetensors)",
        )


def _open(path: Path) -> Any:
    import gguf

    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise _broken(path, f"it starts with {magic!r}, expected b'GGUF'")
        return gguf.GGUFReader(path)
    except OSError as error:
        raise _broken(path, str(error)) from error
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise _broken(path, f"it ends early or is damaged ({error})") from error


def _broken(path: Path, reason: str) -> EngineError:
    return EngineError(
        "EN131",
        f"cannot read {str(path)!r} as a GGUF file: {reason}",
        help="fetch the file again",
    )
