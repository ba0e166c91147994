"""The decoder of all families: plain functions over weight tensors.

Llama, Mistral, Mixtral, Qwen, SmolLM, Phi and Gemma differ in configuration and in which optional
tensors a layer has. Matrices that read the same input are one matrix: Q, K and V; gate and up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from flowforge.engine.attention.compiled import CompiledAttention
from flowforge.engine.attention.interface import LayerAttention
from flowforge.engine.models.experts import ExpertWeights, mix_experts
from flowforge.engine.models.linears import ALL_ROWS, most_native_rows
from flowforge.engine.models.operators import operators_for
from flowforge.engine.models.rope import RotaryEmbedding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.attention.interface import AttentionStep
    from flowforge.engine.models.compiled_layers import CompiledLayers
    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.models.linears import KernelChoice, Linear
    from flowforge.engine.models.operators import Angles, LayerOperators


@dataclass(frozen=True, slots=True)
class QKNorm:
    """Weights that normalise each head of Q and of K: [head_dim] each (Qwen3, Gemma 3)."""

    q: torch.Tensor
    k: torch.Tensor


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """A gated MLP; gate_up gives 2 · intermediate_size, gate first."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; all in one dtype on one device.

    qkv gives (num_heads + 2 · num_kv_heads) · head_dim, Q first, then K, then V.
    Norms may be of a wider dtype and are then computed in it. The post norms are Gemma's.
    """

    attention_norm: torch.Tensor
    qkv: Linear
    qk_norm: QKNorm | None
    output: Linear
    attention_post_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    mlp: MlpWeights | ExpertWeights
    mlp_post_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All tensors of a decoder; lm_head multiplies with the embedding itself in a tied model.

    embedding: [vocab_size, hidden_size]; final_norm: [hidden_size]; lm_head gives vocab_size.
    """

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    lm_head: Linear


class Decoder:
    """One model's forward pass; holds its weights and no state between steps.

    kernel_choices: what was chosen for its matrices, where there was a choice. compiled: its
    layers, for steps that the kernels compute as a whole. operators: None for what the device has.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        kernel_choices: Sequence[KernelChoice] = (),
        compiled: CompiledLayers | None = None,
        operators: LayerOperators | None = None,
    ) -> None:
        self.config = config
        self.kernel_choices = tuple(kernel_choices)
        self._compiled = compiled
        self._weights = weights
        self._operators = operators_for(self.device) if operators is None else operators
        ropes = {layer.rope for layer in config.layers if layer.rope is not None}
        self._rotaries = {rope: RotaryEmbedding(rope, self.device) for rope in ropes}
        self._attentions = tuple(
            LayerAttention(config.score_scale, layer.window, config.score_softcap)
            for layer in config.layers
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrices, hidden states, and K and V rows."""
        return self._weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._weights.embedding.device

    @property
    def has_one_way(self) -> bool:
        """Whether every step is computed by the same kernels, however many rows it has."""
        has_layers = self._compiled is not None and self._compiled.most_rows >= ALL_ROWS
        return has_layers and most_native_rows(self._weights.lm_head) >= ALL_ROWS

    def __repr__(self) -> str:
        config = self.config
        shape = f"{config.num_layers} layers × {config.hidden_size}"
        return f"Decoder({config.family.name}, {shape}, {self.dtype}, {self.device})"

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionStep
    ) -> torch.Tensor:
        """Run all layers over the tokens of one step: [T, hidden_size] after the final norm.

        token_ids, positions: int64 [T], tokens of one sequence adjacent. attention reads and
        writes the KV rows of this step. Call under torch.inference_mode().
        """
        config = self.config
        hidden = self._embed(token_ids)
        angles = {
            rope: rotary.angles(positions, hidden.dtype) for rope, rotary in self._rotaries.items()
        }
        compiled = self._compiled
        if (
            compiled is not None
            and isinstance(attention, CompiledAttention)
            and len(hidden) <= compiled.most_rows
        ):
            return compiled.forward(hidden, angles, attention)
        layers, operators, eps = self._weights.layers, self._operators, config.rms_norm_eps
        # The norm behind each layer: what comes next is the next layer or the end.
        behind = [layer.attention_norm for layer in layers[1:]] + [self._weights.final_norm]
        normed = operators.norm(hidden, layers[0].attention_norm, eps)
        for layer_idx, (layer, norm_behind) in enumerate(zip(layers, behind, strict=True)):
            rope = config.layers[layer_idx].rope
            turns = None if rope is None else angles[rope]
            attended = layer.output(self._attend(layer_idx, layer, normed, turns, attention))
            hidden, normed = operators.add_norm(
                attended, hidden, layer.mlp_norm, eps, layer.attention_post_norm
            )
            hidden, normed = operators.add_norm(
                self._mlp(layer.mlp, normed), hidden, norm_behind, eps, layer.mlp_post_norm
            )
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score every id after each row: float32 [R, vocab_size]; hidden: [R, hidden_size].

        Ids past the tokenizer's (a padded vocabulary) have scores too: the sampler masks them.
        """
        logits = self._weights.lm_head(hidden).to(torch.float32)
        softcap = self.config.logits_softcap
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        hidden = self._look_up(token_ids)
        if not self.config.family.has_gemma_numerics:
            return hidden
        # Rounded to the model's dtype first, as it was in training.
        return hidden * torch.tensor(self.config.hidden_size**0.5, dtype=hidden.dtype)

    def _look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, self._weights.embedding)

    def _attend(
        self,
        layer_idx: int,
        layer: LayerWeights,
        normed: torch.Tensor,
        angles: Angles | None,
        attention: AttentionStep,
    ) -> torch.Tensor:
        config = self.config
        num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
        projected = layer.qkv(normed)
        heads = projected.view(-1, num_heads + 2 * num_kv_heads, config.head_dim)
        norms = None if layer.qk_norm is None else (layer.qk_norm.q, layer.qk_norm.k)
        qk = self._operators.turn_heads(
            heads, num_heads, num_kv_heads, angles, norms, config.rms_norm_eps
        )
        q, k = qk.split_with_sizes((num_heads, num_kv_heads), dim=1)
        v = heads[:, num_heads + num_kv_heads :]
        attended = attention.attend(layer_idx, q, k, v, self._attentions[layer_idx])
        return attended.reshape(-1, num_heads * config.head_dim)

    def _mlp(self, mlp: MlpWeights | ExpertWeights, normed: torch.Tensor) -> torch.Tensor:
        if isinstance(mlp, ExpertWeights):
            assert self.config.experts is not None, "a layer of experts has their configuration"
            return mix_experts(normed, mlp, self.config.experts)
        gate_up = mlp.gate_up(normed)
        return mlp.down(self._operators.gate(gate_up, self.config.activation))
