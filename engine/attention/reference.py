"""Dense attention, written out: what the paged paths are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.attention.interface import LayerAttention


class DenseAttention:
    """An AttentionStep over fresh sequences: no pages, no cache, each token sees its own step.

    sequence_lens: tokens of each sequence of the step, in order.
    """

    def __init__(self, sequence_lens: Sequence[int]) -> None:
        self._sequence_lens = list(sequence_lens)

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: LayerAttention,
    ) -> torch.Tensor:
        """Attend causally inside each sequence; shapes as AttentionStep.attend says."""
        parts = (tensor.split_with_sizes(self._sequence_lens) for tensor in (q, k, v))
        outputs = [dense_attention(q, k, v, layer) for q, k, v in zip(*parts, strict=True)]
        return torch.cat(outputs)


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: LayerAttention
) -> torch.Tensor:
    """Attention of one sequence whose last tokens ask: softmax(cap(scale · Q Kᵀ) + mask) V.

    q: [query_len, num_heads, head_dim]; k, v: [context_len, num_kv_heads, head_dim], of which the
    last query_len are the queries' own. Computes in float32. Returns the shape and dtype of q.
    """
    num_shared = q.shape[1] // k.shape[1]
    queries = q.transpose(0, 1).float()  # [num_heads, query_len, head_dim]
    keys, values = (
        rows.repeat_interleave(num_shared, dim=1).transpose(0, 1).float() for rows in (k, v)
    )
    scores = queries @ keys.transpose(1, 2) * layer.scale  # [num_heads, query_len, context_len]
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    context_len = keys.shape[1]
    key_positions = torch.arange(context_len, device=q.device)
    distance = key_positions[context_len - q.shape[0] :, None] - key_positions
    is_hidden = distance < 0
    if layer.window is not None:
        is_hidden |= distance >= layer.window
    weights = scores.masked_fill(is_hidden, float("-inf")).softmax(dim=-1)
    return (weights @ values).transpose(0, 1).to(q.dtype)
