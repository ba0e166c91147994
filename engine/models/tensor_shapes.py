"""Whether a checkpoint's tensors are those that a configuration asks for, in number and shape."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flowforge.engine.models.tensor_names import (
    ATTENTION_NORM,
    EMBEDDING,
    FINAL_NORM,
    LM_HEAD,
    expert_matrix_names,
    experts_name,
    gate_up_names,
    norm_names,
    qkv_names,
)
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flowforge.engine.models.checkpoint import Checkpoint
    from flowforge.engine.models.config import ModelConfig

_logger = logging.getLogger(__name__)

# Buffers that old checkpoints carry and the configuration replaces.
_NEEDLESS_SUFFIX = ".rotary_emb.inv_freq"

_Expected = tuple[str, tuple[int, ...], str]  # tensor, shape, the config keys it follows from


def check_shapes(checkpoint: Checkpoint, config: ModelConfig, directory: Path) -> None:
    """Hold every shape against the configuration before anything is computed with one."""
    for layer_idx in range(config.num_layers):
        if f"model.layers.{layer_idx}.{ATTENTION_NORM}.weight" not in checkpoint:
            raise _misfit(
                directory, "num_hidden_layers", config.num_layers, f"tensors of {layer_idx} layers"
            )
    for name, expected, keys in _expected_shapes(config):
        found = checkpoint.shape(name)
        if found != expected:
            raise _misfit(
                directory, keys, list(expected), f"{list(found)} in {name!r}", "which asks for"
            )
    if f"model.layers.{config.num_layers}.{ATTENTION_NORM}.weight" in checkpoint:
        raise _misfit(directory, "num_hidden_layers", config.num_layers, "tensors of more layers")


def report_unused(checkpoint: Checkpoint, directory: Path) -> None:
    """Refuse biases that the configuration does not know; warn of other tensors left over."""
    unused = [name for name in checkpoint.unused() if not name.endswith(_NEEDLESS_SUFFIX)]
    # A bias that config.json does not mention would change every result if it were dropped.
    if biases := [name for name in unused if name.endswith(".bias")]:
        raise _misfit(directory, "attention_bias or mlp_bias", "false", f"tensor {biases[0]!r}")
    if unused:
        names = ", ".join(unused[:3])
        _logger.warning("%s: %d tensors are not used: %s", directory.name, len(unused), names)


def _expected_shapes(config: ModelConfig) -> Iterator[_Expected]:
    hidden = config.hidden_size
    yield EMBEDDING, (config.vocab_size, hidden), "vocab_size and hidden_size"
    yield FINAL_NORM, (hidden,), "hidden_size"
    if not config.is_tied:
        yield LM_HEAD, (config.vocab_size, hidden), "vocab_size and hidden_size"
    for layer_idx, layer in enumerate(config.layers):
        mlp = _expected_experts(config) if layer.has_experts else _expected_mlp(config)
        for name, shape, keys in (*_expected_norms(config), *_expected_attention(config), *mlp):
            yield f"model.layers.{layer_idx}.{name}", shape, keys


def _expected_norms(config: ModelConfig) -> Iterator[_Expected]:
    norms = norm_names(config)
    for name in (ATTENTION_NORM, norms.mlp, norms.attention_post, norms.mlp_post):
        if name is not None:
            yield f"{name}.weight", (config.hidden_size,), "hidden_size"
    if config.family.has_qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,), "head_dim"
        yield "self_attn.k_norm.weight", (config.head_dim,), "head_dim"


def _expected_attention(config: ModelConfig) -> Iterator[_Expected]:
    hidden = config.hidden_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    q_keys = "num_attention_heads, head_dim and hidden_size"
    kv_keys = "num_key_value_heads, head_dim and hidden_size"
    names = qkv_names(config)
    sizes = (q + 2 * kv,) if len(names) == 1 else (q, kv, kv)
    all_keys = (q_keys, kv_keys, kv_keys)
    for name, num_rows, keys in zip(names, sizes, all_keys[: len(names)], strict=True):
        matrix = f"self_attn.{name}"
        yield from _expected_matrix(matrix, num_rows, hidden, config.has_qkv_bias, keys)
    yield from _expected_matrix("self_attn.o_proj", hidden, q, config.has_output_bias, q_keys)


def _expected_mlp(config: ModelConfig) -> Iterator[_Expected]:
    hidden, size, has_bias = config.hidden_size, config.intermediate_size, config.has_mlp_bias
    keys = "intermediate_size and hidden_size"
    names = gate_up_names(config)
    for name in names:
        num_rows = 2 * size // len(names)
        yield from _expected_matrix(f"mlp.{name}", num_rows, hidden, has_bias, keys)
    yield from _expected_matrix("mlp.down_proj", hidden, size, has_bias, keys)


def _expected_experts(config: ModelConfig) -> Iterator[_Expected]:
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None, "a layer of experts has their configuration"
    prefix = experts_name(config)
    keys = "the intermediate size of an expert and hidden_size"
    gate, up, down = expert_matrix_names(config)
    yield f"{prefix}.gate.weight", (experts.num_experts, hidden), "num_experts and hidden_size"
    for idx in range(experts.num_experts):
        expert = f"{prefix}.experts.{idx}"
        for name in (gate, up):
            yield f"{expert}.{name}.weight", (experts.intermediate_size, hidden), keys
        yield f"{expert}.{down}.weight", (hidden, experts.intermediate_size), keys


def _expected_matrix(
    name: str, num_rows: int, num_columns: int, has_bias: bool, keys: str
) -> Iterator[_Expected]:
    yield f"{name}.weight", (num_rows, num_columns), keys
    if has_bias:
        yield f"{name}.bias", (num_rows,), keys


def _misfit(
    directory: Path, key: str, expected: object, found: str, verb: str = "which is"
) -> EngineError:
    return EngineError(
        "EN113",
        f"config.json in {str(directory)!r} does not fit its weights: {key}, {verb} {expected}; "
        f"found {found}",
        help="config.json and weights must be of one model: fetch both again",
    )
