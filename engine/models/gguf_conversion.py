"""One GGUF file turned, once, into a Hugging Face directory that loads by memory map.

Weights are dequantised to float32, exactly: rounding to bfloat16 would be other weights. The rows
of Q and K go back from GGUF's interleaved rotary order to the half-split order of Hugging Face,
and each layer's tensors are written in the order the decoder fuses them (q, k, v, then gate, up),
so that loading makes views of the file instead of copies.

Source of the formats: the `gguf` package of llama.cpp (MIT) for GGUF, the safetensors format note.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float32]

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The order inside a layer; what the decoder fuses lies side by side.
_LAYER_ORDER = {name: idx for idx, name in enumerate(_LAYER_NAMES)}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types that are matched before BPE runs


@dataclass(frozen=True, slots=True)
class _PlannedTensor:
    name: str
    shape: tuple[int, ...]
    read: Callable[[], FloatArray]


def convert_gguf(gguf_path: Path, out_dir: Path) -> None:
    """Write config, weights (float32), tokenizer and chat template of a GGUF file into out_dir.

    out_dir is made if it is missing. Whoever needs all or nothing gives a temporary folder and
    renames it. `transformers` loads the result unchanged.
    Raises EngineError EN131 (not a whole GGUF file) or EN132 (a kind of model not supported).
    """
    reader = _open(gguf_path)
    metadata = _Metadata(gguf_path, reader)
    config = _model_config(metadata, reader)
    tokenizer = _build_tokenizer(metadata)
    tensors = _plan_tensors(gguf_path, reader, config)
    out_dir.mkdir(parents=True, exist_ok=True)
    _write_safetensors(out_dir / "model.safetensors", tensors, gguf_path)
    _write_json(out_dir / "config.json", config)
    _write_json(out_dir / "generation_config.json", _generation_config(config))
    (out_dir / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    _write_json(out_dir / "tokenizer_config.json", _tokenizer_config(metadata, config))


class _Metadata:
    """The key-value part of a GGUF file, read with errors that name the key."""

    def __init__(self, path: Path, reader: Any) -> None:
        self._path = path
        self._reader = reader

    def find(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def require(self, key: str) -> Any:
        value = self.find(key)
        if value is None:
            raise _broken(self._path, f"metadata key {key!r} is missing")
        return value

    def unsupported(self, key: str, found: object, supported: str) -> EngineError:
        return EngineError(
            "EN132",
            f"GGUF file {str(self._path)!r} has {key} {found!r}, supported: {supported}",
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


def _model_config(metadata: _Metadata, reader: Any) -> dict[str, object]:
    architecture = metadata.require("general.architecture")
    if architecture != "llama":
        raise metadata.unsupported("general.architecture", architecture, "'llama'")
    scaling = metadata.find("llama.rope.scaling.type")
    if scaling not in (None, "none"):
        raise metadata.unsupported("llama.rope.scaling.type", scaling, "none")
    num_heads = int(metadata.require("llama.attention.head_count"))
    hidden_size = int(metadata.require("llama.embedding_length"))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise metadata.unsupported("no tensor", "token_embd.weight", "files with an embedding")
    bos, eos, pad = (
        metadata.find(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "padding")
    )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "head_dim": int(metadata.find("llama.rope.dimension_count") or hidden_size // num_heads),
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": int(metadata.require("llama.feed_forward_length")),
        "max_position_embeddings": int(metadata.require("llama.context_length")),
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": int(metadata.require("llama.block_count")),
        "num_key_value_heads": int(metadata.find("llama.attention.head_count_kv") or num_heads),
        "rms_norm_eps": float(f"{metadata.require('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_scaling": None,
        "rope_theta": float(metadata.find("llama.rope.freq_base") or 10000.0),
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "float32",
        "vocab_size": int(tensors["token_embd.weight"].shape[-1]),
    }


def _generation_config(config: dict[str, object]) -> dict[str, object]:
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


# --- weights -------------------------------------------------------------------------------------


def _plan_tensors(path: Path, reader: Any, config: dict[str, object]) -> list[_PlannedTensor]:
    """Name, shape and reader of every tensor, in the order of the output file."""
    ordered = sorted(reader.tensors, key=lambda tensor: _file_order(tensor.name))
    return [_plan_tensor(path, tensor, config) for tensor in ordered]


def _file_order(gguf_name: str) -> tuple[int, int, int]:
    match = _LAYER_TENSOR.fullmatch(gguf_name)
    if match is None:
        return (-1, 0, 0)
    return (int(match[1]), match[3] == "bias", _LAYER_ORDER.get(match[2], 0))


def _plan_tensor(path: Path, tensor: Any, config: dict[str, object]) -> _PlannedTensor:
    name, shape = str(tensor.name), tuple(int(size) for size in reversed(tensor.shape))
    match = _LAYER_TENSOR.fullmatch(name)
    hf_name = _GLOBAL_NAMES.get(name)
    if match is not None and match[2] in _LAYER_NAMES:
        hf_name = f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    if hf_name is None:
        raise EngineError(
            "EN132",
            f"GGUF file {str(path)!r} has a tensor {name!r} that a Llama decoder has no place for",
            help="use the model's Hugging Face directory (config.json and safetensors)",
        )
    num_heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }.get(match[2] if match is not None else "")

    def read() -> FloatArray:
        values = _dequantize(path, tensor).reshape(shape)
        return values if num_heads is None else _half_split_rows(values, cast("int", num_heads))

    return _PlannedTensor(hf_name, shape, read)


def _dequantize(path: Path, tensor: Any) -> FloatArray:
    from gguf.quants import dequantize

    try:
        return cast("FloatArray", dequantize(tensor.data, tensor.tensor_type))
    except NotImplementedError as error:
        raise EngineError(
            "EN132",
            f"GGUF file {str(path)!r} stores {tensor.name!r} as {tensor.tensor_type.name}, "
            "which cannot be dequantised",
            help="use a file in F32, F16, BF16, Q4_0, Q4_1, Q8_0 or a K-quant",
        ) from error


def _half_split_rows(values: FloatArray, num_heads: int) -> FloatArray:
    """Undo llama.cpp's row order: pairs (0, 1), (2, 3) of a head become halves (0, d/2)."""
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])  # [heads, d/2, 2, ...]
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)


def _write_safetensors(path: Path, tensors: list[_PlannedTensor], source: Path) -> None:
    """Write tensors one at a time, in the given order; at most one is in memory."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "source": source.name}}
    offset = 0
    for tensor in tensors:
        num_bytes = 4 * int(np.prod(tensor.shape))
        header[tensor.name] = {
            "dtype": "F32",
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
            file.write(np.ascontiguousarray(tensor.read(), dtype="<f4").tobytes())


# --- tokenizer -----------------------------------------------------------------------------------


def _build_tokenizer(metadata: _Metadata) -> str:
    """The text of tokenizer.json: byte-level BPE from the vocabulary and merges in the file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    if (kind := metadata.require("tokenizer.ggml.model")) != "gpt2":
        raise metadata.unsupported("tokenizer.ggml.model", kind, "'gpt2' (byte-level BPE)")
    tokens: list[str] = metadata.require("tokenizer.ggml.tokens")
    types: list[int] = metadata.require("tokenizer.ggml.token_type")
    merges = [_merge(rule) for rule in metadata.require("tokenizer.ggml.merges")]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(metadata)
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind_of in zip(tokens, types, strict=True):
        if kind_of == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind_of == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer.to_str(pretty=False)


def _merge(rule: str) -> tuple[str, str]:
    left, right = rule.split(" ", 1)
    return left, right


def _pre_tokenizer(metadata: _Metadata) -> Any:
    from tokenizers import pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    match metadata.require("tokenizer.ggml.pre"):
        case "gpt-2":
            return byte_level
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, byte_level])
        case other:
            raise metadata.unsupported("tokenizer.ggml.pre", other, "'smollm', 'gpt-2'")


def _tokenizer_config(metadata: _Metadata, config: dict[str, object]) -> dict[str, object]:
    tokens: list[str] = metadata.require("tokenizer.ggml.tokens")
    types: list[int] = metadata.require("tokenizer.ggml.token_type")
    settings: dict[str, object] = {
        # The general class takes tokenizer.json as it is; a family's class may rebuild it.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "chat_template": metadata.find("tokenizer.chat_template"),
        "added_tokens_decoder": {
            str(token_id): {"content": token, "special": True, "normalized": False}
            for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == _CONTROL
        },
    }
    for kind, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        token_id = metadata.find(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            settings[f"{kind}_token"] = tokens[token_id]
    return settings


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
