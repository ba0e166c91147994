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
from flowforge.engine.models.rope import RotaryEmbedding, rotate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.attention.interface import AttentionStep
    from flowforge.engine.models.compiled_layers import CompiledLayers
    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.models.linears import KernelChoice, Linear

    Angles = tuple[torch.Tensor, torch.Tensor]


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
    layers, for steps that the kernels compute as a whole.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        kernel_choices: Sequence[KernelChoice] = (),
        compiled: CompiledLayers | None = None,
    ) -> None:
        self.config = config
        self.kernel_choices = tuple(kernel_choices)
        self._compiled = compiled
        self._weights = weights
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
        for layer_idx, (layer, of_layer) in enumerate(
            zip(self._weights.layers, self.config.layers, strict=True)
        ):
            turns = None if of_layer.rope is None else angles[of_layer.rope]
            attended = self._attend(layer_idx, layer, hidden, turns, attention)
            projected = layer.output(attended)
            hidden = hidden + self._post_norm(projected, layer.attention_post_norm)
            normed = self._norm(hidden, layer.mlp_norm)
            hidden = hidden + self._post_norm(self._mlp(layer.mlp, normed), layer.mlp_post_norm)
        return self._norm(hidden, self._weights.final_norm)

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
        hidden: torch.Tensor,
        angles: Angles | None,
        attention: AttentionStep,
    ) -> torch.Tensor:
        config = self.config
        num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
        normed = self._norm(hidden, layer.attention_norm)
        projected = layer.qkv(normed)
        heads = projected.view(-1, num_heads + 2 * num_kv_heads, config.head_dim)
        qk, v = heads.split_with_sizes((num_heads + num_kv_heads, num_kv_heads), dim=1)
        if layer.qk_norm is not None:
            qk = self._norm_heads(qk, layer.qk_norm)
        if angles is not None:
            qk = rotate(qk, *angles)
        q, k = qk.split_with_sizes((num_heads, num_kv_heads), dim=1)
        attended = attention.attend(layer_idx, q, k, v, self._attentions[layer_idx])
        return attended.reshape(-1, num_heads * config.head_dim)

    def _mlp(self, mlp: MlpWeights | ExpertWeights, normed: torch.Tensor) -> torch.Tensor:
        if isinstance(mlp, ExpertWeights):
            assert self.config.experts is not None, "a layer of experts has their configuration"
            return mix_experts(normed, mlp, self.config.experts)
        gate, up = mlp.gate_up(normed).chunk(2, dim=-1)
        return mlp.down(self._activate(gate) * up)

    def _activate(self, gate: torch.Tensor) -> torch.Tensor:
        if self.config.activation == "silu":
            return F.silu(gate)
        return F.gelu(gate, approximate="tanh")

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = hidden.to(weight.dtype)
        return F.rms_norm(wide, weight.shape, weight, self.config.rms_norm_eps).to(hidden.dtype)

    def _post_norm(self, hidden: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return hidden if weight is None else self._norm(hidden, weight)

    def _norm_heads(self, qk: torch.Tensor, weights: QKNorm) -> torch.Tensor:
        q, k = qk.split_with_sizes((self.config.num_heads, self.config.num_kv_heads), dim=1)
        return torch.cat((self._norm(q, weights.q), self._norm(k, weights.k)), dim=1)
