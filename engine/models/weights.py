"""From a Hugging Face model directory to a Decoder: names, shapes and dtype, all checked first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flowforge.engine.models.checkpoint import open_checkpoint, open_quantized
from flowforge.engine.models.compiled_layers import compile_layers
from flowforge.engine.models.config import ModelConfig, read_model_config
from flowforge.engine.models.decoder import (
    Decoder,
    DecoderWeights,
    LayerWeights,
    MlpWeights,
    QKNorm,
)
from flowforge.engine.models.experts import ExpertWeights
from flowforge.engine.models.kernel_choice import choose_kernels
from flowforge.engine.models.linears import LinearMaker, find_kernels
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
from flowforge.engine.models.tensor_shapes import check_shapes, report_unused
from flowforge.engine.models.tensor_source import TensorSource
from flowforge.engine.models.weight_size import choose_dtype
from flowforge.engine.processor import find_processor

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.models.checkpoint import CheckpointCut
    from flowforge.engine.models.linears import KernelChoice, KernelUse


def load_decoder(
    directory: Path,
    config: ModelConfig | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    kernels: KernelUse = "never",
    kernel_rows: int | None = None,
) -> Decoder:
    """Load the decoder of a model directory (config.json and safetensors, one file or shards).

    Weights already in dtype on the CPU are views of the memory-mapped files: nothing is copied,
    and the files must stay as they are. dtype None keeps float32 weights exact; narrower ones
    become bfloat16 where the CPU computes in it, else float32. kernels: when products are left to
    the engine's own, up to kernel_rows rows (see `EngineConfig`); the first "measured" on a
    machine takes a second longer.
    Raises EngineError EN110 to EN114 (configuration) or EN120 to EN124 (weights).
    """
    config = read_model_config(directory) if config is None else config
    loaded = load_weights(
        directory, config, dtype=dtype, device=device, kernels=kernels, kernel_rows=kernel_rows
    )
    compiled = compile_layers(config, loaded.weights)
    return Decoder(config, loaded.weights, loaded.kernel_choices, compiled)


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """All tensors of a decoder, and what was chosen for its matrices."""

    weights: DecoderWeights
    kernel_choices: list[KernelChoice]


def load_weights(
    directory: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    kernels: KernelUse = "never",
    kernel_rows: int | None = None,
    part: CheckpointCut | None = None,
) -> LoadedWeights:
    """What `load_decoder` makes its decoder of. Raises as it.

    kernel_rows: as in `EngineConfig`. part: None for the whole model.
    """
    checkpoint = open_checkpoint(directory)
    check_shapes(checkpoint, config, directory)
    if dtype is None:
        dtype = choose_dtype(checkpoint.stored_dtype, has_bfloat16=find_processor().has_bfloat16)
    place = torch.device(device)
    maker = LinearMaker(kernels, find_kernels(place, kernels, dtype), dtype)
    quantized = None if kernels == "never" else open_quantized(directory)
    if part is not None:
        config, checkpoint = part.config, part.cut(checkpoint, False)
        quantized = None if quantized is None else part.cut(quantized, True)
    source = TensorSource(checkpoint, quantized, maker, dtype, place)
    weights = _read_weights(source, config)
    report_unused(checkpoint, directory)
    choose_kernels(maker, kernel_rows)
    return LoadedWeights(weights, maker.choices)


def _read_weights(source: TensorSource, config: ModelConfig) -> DecoderWeights:
    embedding = source.tensor(EMBEDDING)
    head = EMBEDDING if config.is_tied else LM_HEAD
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_read_layer(source, config, idx) for idx in range(config.num_layers)),
        final_norm=source.norm(FINAL_NORM, config),
        lm_head=source.lm_head(head, embedding if config.is_tied else None),
    )


def _read_layer(source: TensorSource, config: ModelConfig, layer_idx: int) -> LayerWeights:
    prefix = f"model.layers.{layer_idx}"
    attention = f"{prefix}.self_attn"
    norms = norm_names(config)

    def norm(name: str | None) -> torch.Tensor | None:
        return None if name is None else source.norm(f"{prefix}.{name}.weight", config)

    return LayerWeights(
        attention_norm=source.norm(f"{prefix}.{ATTENTION_NORM}.weight", config),
        qkv=source.linear(attention, qkv_names(config), has_bias=config.has_qkv_bias),
        qk_norm=_read_qk_norm(source, attention, config) if config.family.has_qk_norm else None,
        output=source.linear(attention, ("o_proj",), has_bias=config.has_output_bias),
        attention_post_norm=norm(norms.attention_post),
        mlp_norm=source.norm(f"{prefix}.{norms.mlp}.weight", config),
        mlp=(
            _read_experts(source, f"{prefix}.{experts_name(config)}", config)
            if config.layers[layer_idx].has_experts
            else _read_mlp(source, f"{prefix}.mlp", config)
        ),
        mlp_post_norm=norm(norms.mlp_post),
    )


def _read_qk_norm(source: TensorSource, attention: str, config: ModelConfig) -> QKNorm:
    q, k = (source.norm(f"{attention}.{name}.weight", config) for name in ("q_norm", "k_norm"))
    return QKNorm(q, k)


def _read_mlp(source: TensorSource, mlp: str, config: ModelConfig) -> MlpWeights:
    has_bias = config.has_mlp_bias
    return MlpWeights(
        gate_up=source.linear(mlp, gate_up_names(config), has_bias=has_bias),
        down=source.linear(mlp, ("down_proj",), has_bias=has_bias),
    )


def _read_experts(source: TensorSource, prefix: str, config: ModelConfig) -> ExpertWeights:
    source.refuse_to_be_deterministic("a mixture of experts")
    experts = config.experts
    assert experts is not None, "a layer of experts has their configuration"
    gate, up, down = expert_matrix_names(config)
    every = range(experts.num_experts)
    gates_ups = [f"experts.{idx}.{name}" for idx in every for name in (gate, up)]
    downs = [f"experts.{idx}.{down}" for idx in every]
    size = 2 * experts.intermediate_size
    return ExpertWeights(
        router=source.tensor(f"{prefix}.gate.weight"),
        gate_up=source.stacked(prefix, gates_ups).view(-1, size, config.hidden_size),
        down=source.stacked(prefix, downs).view(-1, config.hidden_size, size // 2),
    )
