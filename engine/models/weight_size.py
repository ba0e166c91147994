"""In what form a model's weights are loaded, and what they take: known from headers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, assert_never

import torch

from flowforge.engine.models.checkpoint import open_checkpoint, open_quantized
from flowforge.engine.models.packed import PACKED_KIND, PackedKind, packed_bytes
from flowforge.engine.models.prepacked import can_prepack
from flowforge.engine.models.quantized import KIND_OF_BYTES
from flowforge.engine.models.tensor_names import EMBEDDING, LM_HEAD, is_linear
from flowforge.engine.native.library import find_library
from flowforge.engine.processor import find_processor
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.config import Dtype
    from flowforge.engine.devices import ChosenDevice, CudaDevice
    from flowforge.engine.models.checkpoint import Checkpoint, CheckpointCut
    from flowforge.engine.models.linears import KernelUse


@dataclass(frozen=True, slots=True)
class WeightSize:
    """What `load_decoder` is to be told, and what the weights take then."""

    dtype: torch.dtype
    num_bytes: int
    kernels: KernelUse


def weight_size(
    directory: Path,
    choice: Dtype = "auto",
    *,
    is_deterministic: bool = False,
    device: ChosenDevice | None = None,
    part: CheckpointCut | None = None,
) -> WeightSize:
    """Known from the files' headers alone. choice, is_deterministic: as in `EngineConfig`.

    part: as in `load_weights`. device: None is the CPU.
    Raises EngineError EN120 to EN124 (weights), EN125 when `choice` is int4 or int8 and the model
    has no such weights, EN126 when there are no kernels for what is asked, EN234 when it is
    deterministic and not in float32, or on a GPU.
    """
    checkpoint = open_checkpoint(directory)
    cuda = None if device is None else device.cuda
    if cuda is not None and is_deterministic:
        raise EngineError(
            "EN234",
            "is_deterministic needs the kernels of the CPU, and the engine computes on a GPU",
            help="set device to cpu, or leave is_deterministic out",
        )
    dtype, kernels = _form(directory, checkpoint, choice, cuda)
    if is_deterministic:
        _require_deterministic(dtype)
        kernels = "rounded" if kernels == "rounded" else "always"
    quantized = None if kernels == "never" else open_quantized(directory)
    if part is not None:
        checkpoint = part.cut(checkpoint, False)
        quantized = None if quantized is None else part.cut(quantized, True)
    if kernels in ("packed", "float8"):
        num_bytes = _packed_bytes(checkpoint, quantized, kernels == "float8", dtype)
    else:
        num_bytes = checkpoint.num_values * dtype.itemsize
        has_kernels = cuda is not None or (dtype == torch.float32 and find_library() is not None)
        if kernels != "never" and has_kernels:
            num_bytes += _stored_bytes(checkpoint, quantized, is_on_gpu=cuda is not None)
        elif kernels != "never" and dtype == torch.bfloat16 and can_prepack(dtype):
            num_bytes *= 2
    return WeightSize(dtype, num_bytes, kernels)


def choose_dtype(stored: torch.dtype, *, has_bfloat16: bool) -> torch.dtype:
    """Never round below what was published; never emulate what the hardware lacks."""
    if stored.itemsize > torch.bfloat16.itemsize:
        return torch.float32
    return torch.bfloat16 if has_bfloat16 else torch.float32


def _form(
    directory: Path, checkpoint: Checkpoint, choice: Dtype, cuda: CudaDevice | None
) -> tuple[torch.dtype, KernelUse]:
    """What is computed in, and who multiplies."""
    has_bfloat16 = find_processor().has_bfloat16 if cuda is None else cuda.has_bfloat16
    match choice:
        case "auto":
            return choose_dtype(checkpoint.stored_dtype, has_bfloat16=has_bfloat16), "measured"
        case "int4" | "int8":
            _require_groups(directory, choice)
            if cuda is None:
                _require_library(f"dtype {choice}", "take dtype auto")
                return torch.float32, "rounded"
            return torch.bfloat16 if has_bfloat16 else torch.float32, "packed"
        case "float8":
            if cuda is None:
                raise EngineError(
                    "EN126",
                    "dtype float8 is multiplied by the kernels of a GPU, and the engine computes "
                    "on the CPU",
                    help="set device to a GPU, or take dtype auto",
                )
            return torch.bfloat16 if has_bfloat16 else torch.float32, "float8"
        case "float32" | "bfloat16":
            return torch.float32 if choice == "float32" else torch.bfloat16, "never"
        case _:
            assert_never(choice)


def _stored_bytes(checkpoint: Checkpoint, quantized: Checkpoint | None, *, is_on_gpu: bool) -> int:
    """Of the forms that kernels read beside the one that torch multiplies with."""
    if quantized is None:
        is_read = checkpoint.stored_dtype == torch.bfloat16 and not is_on_gpu
        return checkpoint.num_values * torch.bfloat16.itemsize if is_read else 0
    if not is_on_gpu:
        return quantized.num_values
    shapes = _packed_shapes(checkpoint, quantized)
    return sum(packed_bytes(kind, *shape) for kind, shape in shapes.values())


def _packed_bytes(
    checkpoint: Checkpoint, quantized: Checkpoint | None, is_float8: bool, dtype: torch.dtype
) -> int:
    """Of weights of which matrices are kept in few bits alone."""
    shapes = _packed_shapes(checkpoint, None if is_float8 else quantized, is_float8=is_float8)
    num_bytes = sum(packed_bytes(kind, *shape) for kind, shape in shapes.values())
    for name in checkpoint.tensors:
        if name not in shapes or name == EMBEDDING:
            num_bytes += math.prod(checkpoint.shape(name)) * dtype.itemsize
    return num_bytes


def _packed_shapes(
    checkpoint: Checkpoint, quantized: Checkpoint | None, *, is_float8: bool = False
) -> dict[str, tuple[PackedKind, tuple[int, int]]]:
    """Of matrices in few bits. An embedding that is the head, too, is one beside itself."""
    found: dict[str, tuple[PackedKind, tuple[int, int]]] = {}
    for name in checkpoint.tensors:
        is_head = name == EMBEDDING and LM_HEAD not in checkpoint.tensors
        if not (is_linear(name) or is_head):
            continue
        num_rows, num_columns = checkpoint.shape(name)
        if is_float8:
            found[name] = ("float8", (num_rows, num_columns))
        elif quantized is not None and name in quantized:
            kind = PACKED_KIND[KIND_OF_BYTES[quantized.shape(name)[2]]]
            found[name] = (kind, (num_rows, num_columns))
    return found


def _require_deterministic(dtype: torch.dtype) -> None:
    if dtype != torch.float32:
        raise EngineError(
            "EN234",
            f"is_deterministic needs float32 arithmetic, got {str(dtype).removeprefix('torch.')}",
            help="set dtype to float32, or leave is_deterministic out",
        )
    _require_library("is_deterministic", "leave it out")


def _require_library(option: str, instead: str) -> None:
    if find_library() is None:
        raise EngineError(
            "EN126",
            f"{option} needs compiled kernels, and they cannot be made on this machine",
            help=f"install a C compiler (cc, gcc or clang), or {instead}",
        )


def _require_groups(directory: Path, choice: Literal["int4", "int8"]) -> None:
    quantized = open_quantized(directory)
    sizes = set[int]() if quantized is None else quantized.last_sizes()
    if choice not in {PACKED_KIND[KIND_OF_BYTES[size]] for size in sizes}:
        bits, types = ("4", "Q4_0 or Q4_1") if choice == "int4" else ("8", "Q8_0")
        raise EngineError(
            "EN125",
            f"dtype {choice} needs a model with {bits}-bit weights, {str(directory)!r} has none",
            help=f"give a GGUF file of type {types}, or take dtype auto; a GGUF model that was "
            "converted by an older version is converted again when its folder is removed",
        )
