"""Prefixes on disk: what a process computed, for one that goes on with the same tokens later.

A file is named by what decides its contents: the model's revision, the namespace and the tokens. So
whatever is found under a name is right, and a hit is verified once more by the tokens inside and by
a checksum. Files are their owner's alone; together they keep to a size, the oldest go first.

Source: slot save and restore of llama.cpp, whose restored slots may not be hit afterwards: here one
that would not be hit is not restored.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import astuple, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from flowforge.engine.kv.host_rows import checksum
from flowforge.engine.prefix_rows import KvPrefix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    from flowforge.engine.kv.prefix_tree import Namespace

MAX_BYTES = 2_000_000_000
"""Of all files of a folder together, unless said otherwise."""

_SUFFIX = ".kv.safetensors"
_UNFINISHED = ".part"
_LONGEST_WRITE_S = 3_600.0
_FORMAT = "2"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """A file, and what it is of."""

    path: Path
    namespace: Namespace
    tokens: tuple[int, ...]


class PrefixFolder:
    """The prefixes of one model in a folder. Blocks; one thread at a time.

    revision: a text that is another one when the model would compute other rows.
    """

    def __init__(self, folder: Path, revision: str, *, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self._revision = revision
        self._max_bytes = max_bytes

    def keep(self, prefix: KvPrefix) -> bool:
        """Write a prefix, and remove the oldest files that no longer fit beside it.

        False where it is larger than all may be. Raises OSError where nothing can be written.
        """
        path = self._path(prefix.namespace, prefix.tokens)
        if path.exists():
            path.touch()
            return True
        tensors = {"rows": prefix.rows.contiguous()}
        if prefix.scales is not None:
            tensors["scales"] = prefix.scales.contiguous()
        body = save(tensors, _sealed(path, tensors))
        if len(body) > self._max_bytes:
            return False
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room(len(body))
        # Whole or not at all, and nobody else's to read from its first byte on.
        unfinished = path.with_suffix(f".{os.getpid()}{_UNFINISHED}")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
        unfinished.replace(path)
        return True

    def longest(self, namespace: Namespace, tokens: Sequence[int]) -> Kept | None:
        """Where the longest kept prefix of `tokens` is."""
        for num_tokens in self._lengths():
            if num_tokens <= len(tokens):
                beginning = tuple(tokens[:num_tokens])
                path = self._path(namespace, beginning)
                if path.exists():
                    return Kept(path, namespace, beginning)
        return None

    def read(self, kept: Kept) -> KvPrefix | None:
        """A kept prefix; None for one that is gone or damaged, which is removed with a warning."""
        path = kept.path
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                told = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError) as error:
            self.refuse(kept, str(error))
            return None
        if told.get("format") != _FORMAT:
            self.refuse(kept, f"its format is {told.get('format')!r}, expected {_FORMAT!r}")
            return None
        if told != _sealed(path, tensors):
            self.refuse(kept, "its checksum is another one")
            return None
        path.touch()
        return KvPrefix(kept.namespace, kept.tokens, tensors["rows"], tensors.get("scales"))

    def refuse(self, kept: Kept, reason: str) -> None:
        """Remove one that is of no use, with a warning."""
        name = kept.path.name
        _logger.warning("kept KV %r cannot be used and is computed again: %s", name, reason)
        kept.path.unlink(missing_ok=True)

    def _lengths(self) -> list[int]:
        """How long the kept prefixes are, the longest first."""
        names = (path.name.removesuffix(_SUFFIX) for path in self._files())
        counts = {name.rpartition("-")[2] for name in names}
        return sorted((int(count) for count in counts if count.isdecimal()), reverse=True)

    def _files(self) -> list[Path]:
        with suppress(FileNotFoundError):
            return [path for path in self.folder.iterdir() if path.name.endswith(_SUFFIX)]
        return []

    def _make_room(self, num_bytes: int) -> None:
        for path in self.folder.glob(f"*{_UNFINISHED}"):
            # Of a process that was killed; one that writes takes seconds.
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _LONGEST_WRITE_S:
                    path.unlink()
        ages: list[tuple[float, int, Path]] = []
        for path in self._files():
            # Another process may make room at the same time.
            with suppress(FileNotFoundError):
                stat = path.stat()
                ages.append((stat.st_mtime, stat.st_size, path))
        total = sum(size for _, size, _ in ages) + num_bytes
        for _, size, path in sorted(ages):
            if total <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _path(self, namespace: Namespace, tokens: tuple[int, ...]) -> Path:
        told = json.dumps([self._revision, astuple(namespace), tokens])
        digest = blake2b(told.encode(), digest_size=16).hexdigest()
        return self.folder / f"{digest}-{len(tokens)}{_SUFFIX}"


def _sealed(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """What a file says of itself: its name, which says what it is of, and what its tensors are."""
    checksums = {name: checksum(tensor).hex() for name, tensor in tensors.items()}
    return {"format": _FORMAT, "name": path.name} | checksums
