"""The decoder of the Llama family: plain functions over weight tensors.

Llama, SmolLM, Mistral, Qwen2 (biases) and Qwen3 (normalised Q and K) differ only in configuration.
Matrices that read the same input are one matrix: Q, K and V; gate and up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from flowforge.engine.models.rope import RotaryEmbedding

if TYPE_CHECKING:
    from flowforge.engine.attention.interface import AttentionStep
    from flowforge.engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class QKNorm:
    """Weights that normalise each head of Q and of K: [head_dim] each (Qwen3)."""

    q: torch.Tensor
    k: torch.Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; matrices are [rows out, columns in], all in one dtype on one device.

    qkv: [(num_heads + 2 · num_kv_heads) · head_dim, hidden_size], Q rows first, then K, then V.
    gate_up: [2 · intermediate_size, hidden_size], gate rows first.
    """

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: QKNorm | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All tensors of a decoder; lm_head is the embedding itself in a tied model.

    embedding, lm_head: [vocab_size, hidden_size]; final_norm: [hidden_size].
    """

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    lm_head: torch.Tensor


class Decoder:
    """One model's forward pass; holds its weights and no state between steps."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self.config = config
        self._weights = weights
        self._rotary = RotaryEmbedding(config.rope, config.head_dim, weights.embedding.device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, hidden states, and K and V rows."""
        return self._weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._weights.embedding.device

    def __repr__(self) -> str:
        config = self.config
        shape = f"{config.num_layers} layers × {config.hidden_size}"
        return f"Decoder({config.family}, {shape}, {self.dtype}, {self.device})"

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionStep
    ) -> torch.Tensor:
        """Run all layers over the tokens of one step: [T, hidden_size] after the final norm.

        token_ids, positions: int64 [T], tokens of one sequence adjacent. attention reads and
        writes the KV rows of this step. Call under torch.inference_mode().
        """
        hidden = F.embedding(token_ids, self._weights.embedding)
        cosines, sines = self._rotary.angles(positions, hidden.dtype)
        for layer_idx, layer in enumerate(self._weights.layers):
            attended = self._attend(layer_idx, layer, hidden, (cosines, sines), attention)
            hidden = hidden + F.linear(attended, layer.output, layer.output_bias)
            hidden = hidden + self._mlp(layer, hidden)
        return self._norm(hidden, self._weights.final_norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score every id after each row: float32 [R, vocab_size]; hidden: [R, hidden_size].

        Ids past the tokenizer's (a padded vocabulary) have scores too: the sampler masks them.
        """
        return F.linear(hidden, self._weights.lm_head).to(torch.float32)

    def _attend(
        self,
        layer_idx: int,
        layer: LayerWeights,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        attention: AttentionStep,
    ) -> torch.Tensor:
        config = self.config
        num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
        normed = self._norm(hidden, layer.attention_norm)
        projected = F.linear(normed, layer.qkv, layer.qkv_bias)
        heads = projected.view(-1, num_heads + 2 * num_kv_heads, config.head_dim)
        qk, v = heads.split_with_sizes((num_heads + num_kv_heads, num_kv_heads), dim=1)
        if layer.qk_norm is not None:
            qk = self._norm_heads(qk, layer.qk_norm)
        qk = self._rotary.rotate(qk, *angles)
        q, k = qk.split_with_sizes((num_heads, num_kv_heads), dim=1)
        attended = attention.attend(layer_idx, q, k, v)  # [T, num_heads, head_dim]
        return attended.reshape(-1, num_heads * config.head_dim)

    def _mlp(self, layer: LayerWeights, hidden: torch.Tensor) -> torch.Tensor:
        normed = self._norm(hidden, layer.mlp_norm)
        gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down, layer.down_bias)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self.config.rms_norm_eps)

    def _norm_heads(self, qk: torch.Tensor, weights: QKNorm) -> torch.Tensor:
        q, k = qk.split_with_sizes((self.config.num_heads, self.config.num_kv_heads), dim=1)
        return torch.cat((self._norm(q, weights.q), self._norm(k, weights.k)), dim=1)
