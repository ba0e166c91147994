"""In what dtype a model's weights are loaded, and what they take: known from headers alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import torch

from flowforge.engine.models.checkpoint import open_checkpoint, open_quantized
from flowforge.engine.models.quantized import KIND_OF_BYTES
from flowforge.engine.native.library import find_library
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from flowforge.engine.config import Dtype
    from flowforge.engine.devices import ChosenDevice
    from flowforge.engine.models.checkpoint import CheckpointCut
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

    part: as in `load_weights`. device: None is the CPU, whose kernels alone know stored weights.
    Raises EngineError EN120 to EN124 (weights), EN125 when `choice` is int4 and the model has no
    4-bit weights, EN126 when there are no kernels for what is asked, EN234 when it is deterministic
    and not in float32, or on a GPU.
    """
    checkpoint = open_checkpoint(directory)
    cuda = None if device is None else device.cuda
    if cuda is not None:
        _require_possible_on_gpu(choice, is_deterministic=is_deterministic)
    kernels: KernelUse = "measured" if cuda is None else "never"
    match choice:
        case "auto":
            has_bfloat16 = has_native_bfloat16() if cuda is None else cuda.has_bfloat16
            dtype = choose_dtype(checkpoint.stored_dtype, has_bfloat16=has_bfloat16)
        case "int4":
            _require_4_bit(directory)
            dtype, kernels = torch.float32, "rounded"
        case "float32" | "bfloat16":
            dtype = torch.float32 if choice == "float32" else torch.bfloat16
            kernels = "never"
        case _:
            assert_never(choice)
    if is_deterministic:
        _require_deterministic(dtype)
        kernels = "rounded" if kernels == "rounded" else "always"
    if part is not None:
        checkpoint = part.cut(checkpoint, False)
    num_bytes = checkpoint.num_values * dtype.itemsize
    if kernels != "never" and dtype == torch.float32 and find_library() is not None:
        quantized = open_quantized(directory)
        if quantized is not None:
            quantized = quantized if part is None else part.cut(quantized, True)
            num_bytes += quantized.num_values
        elif checkpoint.stored_dtype == torch.bfloat16:
            num_bytes += checkpoint.num_values * torch.bfloat16.itemsize
    return WeightSize(dtype, num_bytes, kernels)


def choose_dtype(stored: torch.dtype, *, has_bfloat16: bool) -> torch.dtype:
    """Never round below what was published; never emulate what the hardware lacks."""
    if stored.itemsize > torch.bfloat16.itemsize:
        return torch.float32
    return torch.bfloat16 if has_bfloat16 else torch.float32


def _require_possible_on_gpu(choice: Dtype, *, is_deterministic: bool) -> None:
    if is_deterministic:
        raise EngineError(
            "EN234",
            "is_deterministic needs the kernels of the CPU, and the engine computes on a GPU",
            help="set device to cpu, or leave is_deterministic out",
        )
    if choice == "int4":
        raise EngineError(
            "EN126",
            "dtype int4 is multiplied by the kernels of the CPU, and the engine computes on a GPU",
            help="set device to cpu, or take dtype auto",
        )


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


def _require_4_bit(directory: Path) -> None:
    quantized = open_quantized(directory)
    kinds = {"q4_0", "q4_1"}
    if quantized is None or not kinds & {KIND_OF_BYTES[size] for size in quantized.last_sizes()}:
        raise EngineError(
            "EN125",
            f"dtype int4 needs a model with 4-bit weights, {str(directory)!r} has none",
            help="give a GGUF file of type Q4_0 or Q4_1, or take dtype auto; a GGUF model that was "
            "converted by an older version is converted again when its folder is removed",
        )
    _require_library("dtype int4", "take dtype auto")


def has_native_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False  # not Linux: float32 is right everywhere
    return "amx_bf16" in flags or "avx512_bf16" in flags
