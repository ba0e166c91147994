"""From a Hugging Face model directory to a Decoder: names, shapes and dtype, all checked first."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowforge.engine.models.checkpoint import Checkpoint, open_checkpoint
from flowforge.engine.models.config import ModelConfig, read_model_config
from flowforge.engine.models.decoder import Decoder, DecoderWeights, LayerWeights, QKNorm
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_logger = logging.getLogger(__name__)

_EMBEDDING, _LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
# Buffers that old checkpoints carry and the configuration replaces.
_NEEDLESS_SUFFIX = ".rotary_emb.inv_freq"


def load_decoder(
    directory: Path,
    config: ModelConfig | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
) -> Decoder:
    """Load the decoder of a model directory (config.json and safetensors, one file or shards).

    Weights already in dtype on the CPU are views of the memory-mapped files: nothing is copied,
    and the files must stay as they are. dtype None keeps float32 weights exact; narrower ones
    become bfloat16 where the CPU computes in it, else float32.
    Raises EngineError EN110 to EN113 (configuration) or EN120 to EN124 (weights).
    """
    config = read_model_config(directory) if config is None else config
    checkpoint = open_checkpoint(directory)
    _check_shapes(checkpoint, config, directory)
    dtype = _choose_dtype(checkpoint.stored_dtype) if dtype is None else dtype
    source = _Source(checkpoint, dtype, torch.device(device))
    decoder = Decoder(config, _read_weights(source, config))
    _report_unused(checkpoint, directory)
    return decoder


class _Source:
    """Tensors of a checkpoint in the dtype and on the device they will run in."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device

    def stacked(self, prefix: str, names: Sequence[str], kind: str = "weight") -> torch.Tensor:
        full_names = [f"{prefix}.{name}.{kind}" for name in names]
        return self._checkpoint.stacked(full_names).to(device=self._device, dtype=self._dtype)

    def tensor(self, name: str) -> torch.Tensor:
        return self._checkpoint.tensor(name).to(device=self._device, dtype=self._dtype)


def _read_weights(source: _Source, config: ModelConfig) -> DecoderWeights:
    embedding = source.tensor(_EMBEDDING)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_read_layer(source, config, idx) for idx in range(config.num_layers)),
        final_norm=source.tensor("model.norm.weight"),
        lm_head=embedding if config.is_tied else source.tensor(_LM_HEAD),
    )


def _read_layer(source: _Source, config: ModelConfig, layer_idx: int) -> LayerWeights:
    layer = f"model.layers.{layer_idx}"
    attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    qkv, gate_up = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")

    def bias(prefix: str, names: Sequence[str], *, if_configured: bool) -> torch.Tensor | None:
        return source.stacked(prefix, names, "bias") if if_configured else None

    return LayerWeights(
        attention_norm=source.tensor(f"{layer}.input_layernorm.weight"),
        qkv=source.stacked(attention, qkv),
        qkv_bias=bias(attention, qkv, if_configured=config.has_qkv_bias),
        qk_norm=_read_qk_norm(source, attention) if config.has_qk_norm else None,
        output=source.stacked(attention, ("o_proj",)),
        output_bias=bias(attention, ("o_proj",), if_configured=config.has_output_bias),
        mlp_norm=source.tensor(f"{layer}.post_attention_layernorm.weight"),
        gate_up=source.stacked(mlp, gate_up),
        gate_up_bias=bias(mlp, gate_up, if_configured=config.has_mlp_bias),
        down=source.stacked(mlp, ("down_proj",)),
        down_bias=bias(mlp, ("down_proj",), if_configured=config.has_mlp_bias),
    )


def _read_qk_norm(source: _Source, attention: str) -> QKNorm:
    return QKNorm(
        source.tensor(f"{attention}.q_norm.weight"), source.tensor(f"{attention}.k_norm.weight")
    )


# --- does the configuration fit the tensors? -----------------------------------------------------

_Expected = tuple[str, tuple[int, ...], str]  # tensor, shape, the config keys it follows from


def _check_shapes(checkpoint: Checkpoint, config: ModelConfig, directory: Path) -> None:
    """Hold every shape against the configuration before anything is computed with one."""
    for layer_idx in range(config.num_layers):
        if f"model.layers.{layer_idx}.input_layernorm.weight" not in checkpoint:
            raise _misfit(
                directory, "num_hidden_layers", config.num_layers, f"tensors of {layer_idx} layers"
            )
    for name, expected, keys in _expected_shapes(config):
        found = checkpoint.shape(name)
        if found != expected:
            raise _misfit(
                directory, keys, list(expected), f"{list(found)} in {name!r}", "which asks for"
            )
    if f"model.layers.{config.num_layers}.input_layernorm.weight" in checkpoint:
        raise _misfit(directory, "num_hidden_layers", config.num_layers, "tensors of more layers")


def _expected_shapes(config: ModelConfig) -> Iterator[_Expected]:
    hidden = config.hidden_size
    yield _EMBEDDING, (config.vocab_size, hidden), "vocab_size and hidden_size"
    yield "model.norm.weight", (hidden,), "hidden_size"
    if not config.is_tied:
        yield _LM_HEAD, (config.vocab_size, hidden), "vocab_size and hidden_size"
    for layer_idx in range(config.num_layers):
        for name, shape, keys in _expected_layer_shapes(config):
            yield f"model.layers.{layer_idx}.{name}", shape, keys


def _expected_layer_shapes(config: ModelConfig) -> Iterator[_Expected]:
    hidden, mlp = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    q_keys = "num_attention_heads, head_dim and hidden_size"
    kv_keys = "num_key_value_heads, head_dim and hidden_size"
    mlp_keys = "intermediate_size and hidden_size"
    yield "input_layernorm.weight", (hidden,), "hidden_size"
    yield "post_attention_layernorm.weight", (hidden,), "hidden_size"
    matrices = (
        ("self_attn.q_proj", q, hidden, config.has_qkv_bias, q_keys),
        ("self_attn.k_proj", kv, hidden, config.has_qkv_bias, kv_keys),
        ("self_attn.v_proj", kv, hidden, config.has_qkv_bias, kv_keys),
        ("self_attn.o_proj", hidden, q, config.has_output_bias, q_keys),
        ("mlp.gate_proj", mlp, hidden, config.has_mlp_bias, mlp_keys),
        ("mlp.up_proj", mlp, hidden, config.has_mlp_bias, mlp_keys),
        ("mlp.down_proj", hidden, mlp, config.has_mlp_bias, mlp_keys),
    )
    for name, num_rows, num_columns, has_bias, keys in matrices:
        yield f"{name}.weight", (num_rows, num_columns), keys
        if has_bias:
            yield f"{name}.bias", (num_rows,), keys
    if config.has_qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,), "head_dim"
        yield "self_attn.k_norm.weight", (config.head_dim,), "head_dim"


def _misfit(
    directory: Path, key: str, expected: object, found: str, verb: str = "which is"
) -> EngineError:
    return EngineError(
        "EN113",
        f"config.json in {str(directory)!r} does not fit its weights: {key}, {verb} {expected}; "
        f"found {found}",
        help="config.json and weights must be of one model: fetch both again",
    )


def _report_unused(checkpoint: Checkpoint, directory: Path) -> None:
    unused = [name for name in checkpoint.unused() if not name.endswith(_NEEDLESS_SUFFIX)]
    # A bias that config.json does not mention would change every result if it were dropped.
    if biases := [name for name in unused if name.endswith(".bias")]:
        raise _misfit(directory, "attention_bias or mlp_bias", "false", f"tensor {biases[0]!r}")
    if unused:
        names = ", ".join(unused[:3])
        _logger.warning("%s: %d tensors are not used: %s", directory.name, len(unused), names)


# --- dtype ---------------------------------------------------------------------------------------


def _choose_dtype(stored: torch.dtype) -> torch.dtype:
    """Never round below what was published; never emulate what the CPU lacks."""
    if stored.itemsize > torch.bfloat16.itemsize:
        return torch.float32
    return torch.bfloat16 if _has_native_bfloat16() else torch.float32


def _has_native_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False  # not Linux: float32 is right everywhere
    return "amx_bf16" in flags or "avx512_bf16" in flags
