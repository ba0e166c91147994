"""The safetensors files of one model, opened by memory map and checked before any is used.

A tensor handed out is a view of its file. The header format is the safetensors format note's;
the `safetensors` library validates it, this module keeps the map, so that neighbours in the file
can be one matrix.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError, safe_open

from flowforge.engine.models.quantized import KIND_OF_BYTES, QUANTIZED_FILE
from flowforge.engine.models.text_part import text_tensors
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from flowforge.engine.models.config import ModelConfig

_logger = logging.getLogger(__name__)

_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}
_STORED_DTYPES = _DTYPES | {"U8": torch.uint8}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_LFS_POINTER = b"version https://git-lfs"
_REFETCH = "fetch the file again; it must be whole"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: in which file's map, from which byte."""

    path: Path
    content: torch.Tensor  # uint8, the whole file
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _STORED_DTYPES[self.dtype].itemsize

    def view(self, shape: tuple[int, ...]) -> torch.Tensor:
        dtype = _STORED_DTYPES[self.dtype]
        num_bytes = math.prod(shape) * dtype.itemsize
        values = self.content[self.start : self.start + num_bytes]
        # Other writers may start data on any byte; such a tensor is copied to where it can be read.
        aligned = values if self.start % dtype.itemsize == 0 else values.clone()
        return aligned.view(dtype).view(shape)


class Checkpoint:
    """The tensors of a model directory by name; the maps live as long as a tensor of them.

    tensors: where each lies.
    """

    def __init__(self, directory: Path, tensors: dict[str, StoredTensor]) -> None:
        self.directory = directory
        self.tensors = tensors
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of the largest tensor: the precision that the model was published in."""
        return _DTYPES[max(self.tensors.values(), key=lambda tensor: tensor.num_bytes).dtype]

    @property
    def num_values(self) -> int:
        """Numbers in all tensors together."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def dtypes(self, names: Sequence[str]) -> set[torch.dtype]:
        """Those of some tensors, as they are stored. Raises like shape()."""
        return {_STORED_DTYPES[self._find(name).dtype] for name in names}

    def last_sizes(self) -> set[int]:
        """The last dimensions of all tensors."""
        return {tensor.shape[-1] for tensor in self.tensors.values()}

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor. Raises EngineError EN123 when the model has no such tensor."""
        return self._find(name).shape

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor as a view of its file; do not write to it. Raises like shape()."""
        stored = self._find(name)
        self._used.add(name)
        return stored.view(stored.shape)

    def stacked(self, names: Sequence[str]) -> torch.Tensor:
        """Tensors joined along their rows: a view when they lie side by side, else a copy."""
        parts = [self._find(name) for name in names]
        if not _are_neighbours(parts):
            return torch.cat([self.tensor(name) for name in names])
        self._used.update(names)
        num_rows = sum(part.shape[0] for part in parts)
        return parts[0].view((num_rows, *parts[0].shape[1:]))

    def note_used(self, name: str) -> None:
        """Another form of a tensor is used instead of it."""
        self._used.add(name)

    def unused(self) -> list[str]:
        """Names that nothing asked for, sorted."""
        return sorted(set(self.tensors) - self._used)

    def _find(self, name: str) -> StoredTensor:
        stored = self.tensors.get(name)
        if stored is None:
            raise EngineError(
                "EN123",
                f"the weights in {str(self.directory)!r} have no tensor {name!r}",
                help="config.json and weights must be of one model: fetch both again",
            )
        return stored


@dataclass(frozen=True, slots=True)
class CheckpointCut:
    """What a part of a model has of a checkpoint.

    config: of the part. cut: the part's checkpoint of a whole one; True where that holds groups.
    """

    config: ModelConfig
    cut: Callable[[Checkpoint, bool], Checkpoint]


def open_checkpoint(directory: Path) -> Checkpoint:
    """Open the weights of a model directory: one file, or shards listed by an index.

    Raises EngineError EN120 (no weights), EN121 (a listed file or tensor is missing), EN122 (a
    file is truncated or damaged) or EN124 (only pickles).
    """
    if (directory / _INDEX).is_file():
        tensors = _read_shards(directory)
    elif (directory / _SINGLE).is_file():
        tensors = _read_file(directory / _SINGLE)
    else:
        raise _no_weights(directory)
    tensors = text_tensors(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise EngineError(
                "EN112",
                f"{str(tensor.path)!r} stores {name!r} as {tensor.dtype}, "
                f"supported: {', '.join(_DTYPES)}",
                help="choose a model with unquantised weights",
            )
    if not tensors:
        raise _damaged(directory, "it holds no tensors")
    return Checkpoint(directory, tensors)


def open_quantized(directory: Path) -> Checkpoint | None:
    """The matrices of a converted GGUF file as it had them, beside the same in float32.

    See `quantized`. None where there are none. Raises EngineError EN122 for a damaged file.
    """
    path = directory / QUANTIZED_FILE
    if not path.is_file():
        return None
    tensors = _read_file(path)
    for name, tensor in tensors.items():
        is_grouped = len(tensor.shape) == 3 and tensor.shape[2] in KIND_OF_BYTES
        if tensor.dtype != "U8" or not is_grouped:
            raise _damaged(path, f"{name!r} is {tensor.dtype} {list(tensor.shape)}")
    return Checkpoint(directory, tensors)


def _no_weights(directory: Path) -> EngineError:
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        return EngineError(
            "EN124",
            f"{str(directory)!r} holds its weights as {pickles[0]!r}, a pickle, which is refused: "
            "loading one can run any code",
            help="use the model's safetensors files",
        )
    return EngineError(
        "EN120",
        f"no weights in {str(directory)!r}: neither {_SINGLE!r} nor {_INDEX!r}",
        help="give a Hugging Face model directory with safetensors files",
    )


# --- shards --------------------------------------------------------------------------------------


def _read_shards(directory: Path) -> dict[str, StoredTensor]:
    weight_map = _read_index(directory / _INDEX)
    tensors: dict[str, StoredTensor] = {}
    for shard_name in sorted(set(weight_map.values())):
        listed = {name for name, shard in weight_map.items() if shard == shard_name}
        found = _read_file(_shard_path(directory, shard_name))
        missing = sorted(listed - set(found))
        if missing:
            raise EngineError(
                "EN121",
                f"{shard_name!r} in {str(directory)!r} lacks {missing[0]!r}, "
                f"which {_INDEX!r} lists",
                help=_REFETCH,
            )
        if extra := sorted(set(found) - listed):
            _logger.warning("%s holds %d tensors the index does not list", shard_name, len(extra))
        tensors |= {name: found[name] for name in listed}
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _damaged(path, str(error)) from error
    weight_map = cast("Any", content).get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _damaged(path, "it has no 'weight_map'")
    if not all(isinstance(shard, str) for shard in weight_map.values()):
        raise _damaged(path, "its 'weight_map' holds something other than file names")
    return cast("dict[str, str]", weight_map)


def _shard_path(directory: Path, name: str) -> Path:
    path = directory / name
    # Hub caches link files to a shared store, so the name is judged and not what it resolves to.
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise EngineError(
            "EN121",
            f"{_INDEX!r} in {str(directory)!r} lists {name!r}, which is outside the model folder",
            help="do not use this model: shards are plain file names",
        )
    if not path.is_file():
        raise EngineError(
            "EN121",
            f"{name!r}, which {_INDEX!r} lists, is missing in {str(directory)!r}",
            help="fetch the model again; all its shards must be there",
        )
    return path


# --- one file ------------------------------------------------------------------------------------


def _read_file(path: Path) -> dict[str, StoredTensor]:
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        raise EngineError(
            "EN122",
            f"{str(path)!r} is a Git LFS pointer file, not the weights it points to",
            help="run `git lfs pull` in the model's folder, or fetch the model again",
        )
    try:
        # Validates lengths, offsets and dtypes against the file's size; allocates no tensor.
        with safe_open(path, framework="pt"):
            pass
        header, data_start = _read_header(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    content = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    return {
        name: StoredTensor(
            path,
            content,
            entry["dtype"],
            tuple(entry["shape"]),
            data_start + entry["data_offsets"][0],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a validated file, and the byte where its data starts."""
    with path.open("rb") as file:
        num_bytes = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(num_bytes)), 8 + num_bytes


def _are_neighbours(parts: Sequence[StoredTensor]) -> bool:
    return all(
        left.content is right.content
        and left.dtype == right.dtype
        and left.shape[1:] == right.shape[1:]
        and left.start + left.num_bytes == right.start
        for left, right in pairwise(parts)
    )


def _damaged(path: Path, reason: str) -> EngineError:
    return EngineError(
        "EN122", f"weight file {str(path)!r} is truncated or damaged: {reason}", help=_REFETCH
    )
