"""One GGUF file turned, once, into a Hugging Face directory that loads by memory map.

Quantised weights become float32, exactly: rounding to bfloat16 would be other weights. Those in 4
or 8 bits are kept as they are, too: the fewer the rows of a step, the more it is the reading of
weights that takes the time. A file all in half precision stays so. Where a family's rows of Q and K
are in GGUF's interleaved rotary order they go back to the half-split order of Hugging Face, and
each layer's tensors are written in the order the decoder fuses them (q, k, v, then gate, up), so
that loading makes views of the file instead of copies.

Source of the formats: the `gguf` package of llama.cpp (MIT) for GGUF, the safetensors format note.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from flowforge.engine.models.gguf_config import (
    ROPE_TENSORS,
    GgufArchitecture,
    gguf_architecture,
    gguf_model_config,
)
from flowforge.engine.models.gguf_file import GgufFile
from flowforge.engine.models.gguf_names import Placed, placed_tensors
from flowforge.engine.models.gguf_tokenizer import gguf_tokenizer, gguf_tokenizer_config
from flowforge.engine.models.quantized import GROUP_BYTES, KIND_OF_GGUF_TYPE, QUANTIZED_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    # float32, float16, the bits of bfloat16, or groups of integers
    Values = NDArray[np.float32 | np.float16 | np.uint16 | np.uint8]

_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}


@dataclass(frozen=True, slots=True)
class _PlannedTensor:
    """dtype: as safetensors names it. groups: the same as the GGUF file has it, if that is kept."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Values]
    groups: _PlannedTensor | None = None


def convert_gguf(gguf_path: Path, out_dir: Path) -> None:
    """Write config, weights, tokenizer and chat template of a GGUF file into out_dir.

    out_dir is made if it is missing. Whoever needs all or nothing gives a temporary folder and
    renames it. `transformers` loads the result unchanged.
    Raises EngineError EN131 (not a whole GGUF file) or EN132 (a kind of model not supported).
    """
    file = GgufFile(gguf_path)
    with file.taking("what it says of the model"):
        config = gguf_model_config(file)
        tensors = _plan_tensors(file, config)
    with file.taking("its tokenizer"):
        context_len = cast("int", config["max_position_embeddings"])
        tokenizer = gguf_tokenizer(file)
        tokenizer_config = gguf_tokenizer_config(file, context_len)
    out_dir.mkdir(parents=True, exist_ok=True)
    _write_safetensors(out_dir / "model.safetensors", tensors, gguf_path)
    if groups := _kept_groups(tensors):
        _write_safetensors(out_dir / QUANTIZED_FILE, groups, gguf_path)
    _write_json(out_dir / "config.json", config)
    _write_json(out_dir / "generation_config.json", _generation_config(config))
    (out_dir / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    _write_json(out_dir / "tokenizer_config.json", tokenizer_config)


def converted_bytes(gguf_path: Path) -> int:
    """Bytes that the converted weights of a file take. Raises like convert_gguf."""
    file = GgufFile(gguf_path)
    with file.taking("what it says of the model"):
        tensors = _plan_tensors(file, gguf_model_config(file))
    return sum(_num_bytes(tensor) for tensor in (*tensors, *_kept_groups(tensors)))


def _generation_config(config: dict[str, object]) -> dict[str, object]:
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


# --- weights -------------------------------------------------------------------------------------


def _plan_tensors(file: GgufFile, config: dict[str, object]) -> list[_PlannedTensor]:
    """Name, shape and reader of every tensor, in the order of the output file."""
    architecture = gguf_architecture(file)
    num_experts = cast("int", config.get("num_local_experts") or 0)
    half = _half_precision(file)
    planned: list[tuple[Placed, _PlannedTensor]] = []
    for name in file.tensors.keys() - ROPE_TENSORS:
        placed = placed_tensors(name, architecture.family, num_experts)
        if placed is None:
            supported = f"those of a {architecture.family.name} decoder"
            raise file.unsupported("tensor", name, supported)
        planned += [(one, _plan(file, name, one, config, architecture, half)) for one in placed]
    return [tensor for _, tensor in sorted(planned, key=lambda entry: entry[0].place)]


def _kept_groups(tensors: list[_PlannedTensor]) -> list[_PlannedTensor]:
    return [tensor.groups for tensor in tensors if tensor.groups is not None]


def _half_precision(file: GgufFile) -> str | None:
    """The type of all matrices if it is a half precision; a mixed file is as wide as its widest."""
    kinds = {tensor.tensor_type.name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return kinds.pop() if kinds in ({"F16"}, {"BF16"}) else None


def _plan(
    file: GgufFile,
    gguf_name: str,
    placed: Placed,
    config: dict[str, object],
    architecture: GgufArchitecture,
    half: str | None,
) -> _PlannedTensor:
    tensor = file.tensors[gguf_name]
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if placed.part is not None:
        shape = shape[1:]
    num_heads = None
    if architecture.has_paired_rows and placed.rows_of is not None:
        key = "num_attention_heads" if placed.rows_of == "q" else "num_key_value_heads"
        num_heads = cast("int", config[key])
    is_shifted = architecture.has_shifted_norms and "norm" in gguf_name
    kind: str = tensor.tensor_type.name
    dtype = kind if kind == half and not is_shifted else "F32"

    def read() -> Values:
        # Only the part that is asked for: all experts of a layer in float32 are gigabytes.
        content = tensor.data if placed.part is None else tensor.data[placed.part]
        values = _stored(content, dtype) if dtype == kind else _dequantize(file, tensor, content)
        heads = "" if num_heads is None else f" of {num_heads} heads"
        with file.taking(f"tensor {gguf_name!r} of shape {list(shape)}{heads}"):
            values = values.reshape(shape)
            if is_shifted:
                return values - np.float32(1)
            return values if num_heads is None else _half_split_rows(values, num_heads)

    groups = None
    if (kept := KIND_OF_GGUF_TYPE.get(kind)) is not None and placed.part is None:
        groups = _plan_groups(placed.name, tensor, shape, GROUP_BYTES[kept], num_heads)
    return _PlannedTensor(placed.name, dtype, shape, read, groups)


def _plan_groups(
    name: str, tensor: Any, shape: tuple[int, ...], group_bytes: int, num_heads: int | None
) -> _PlannedTensor:
    kept_shape = (shape[0], shape[1] // 32, group_bytes)

    def read() -> Values:
        groups = tensor.data.view(np.uint8).reshape(kept_shape)
        return groups if num_heads is None else _half_split_rows(groups, num_heads)

    return _PlannedTensor(name, "U8", kept_shape, read)


def _stored(content: Any, dtype: str) -> Values:
    # numpy has no bfloat16: the bits go through as they are.
    kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[dtype]
    return cast("Values", content.view(kind))


def _dequantize(file: GgufFile, tensor: Any, content: Any) -> NDArray[np.float32]:
    from gguf.quants import dequantize

    try:
        return cast("NDArray[np.float32]", dequantize(content, tensor.tensor_type))
    except NotImplementedError as error:
        supported = "F32, F16, BF16, Q4_0, Q4_1, Q8_0 and K-quants"
        kind = tensor.tensor_type.name
        raise file.unsupported(f"tensor {tensor.name!r} of type", kind, supported) from error


def _half_split_rows(values: Values, num_heads: int) -> Values:
    """Undo llama.cpp's row order: pairs (0, 1), (2, 3) of a head become halves (0, d/2)."""
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])  # [heads, d/2, 2, ...]
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)


def _write_safetensors(path: Path, tensors: list[_PlannedTensor], source: Path) -> None:
    """Write tensors one at a time, in the given order; at most one is in memory."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "source": source.name}}
    offset = 0
    for tensor in tensors:
        num_bytes = _num_bytes(tensor)
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + num_bytes],
        }
        offset += num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    # Data starts on a cache line: matrix kernels read aligned rows.
    text += b" " * (-(8 + len(text)) % 64)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            file.write(np.ascontiguousarray(tensor.read()).tobytes())


def _num_bytes(tensor: _PlannedTensor) -> int:
    return _ITEM_BYTES[tensor.dtype] * int(np.prod(tensor.shape))


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
