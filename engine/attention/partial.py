"""Attention over a part of the rows that queries see, and the merging of such parts.

The softmax over all rows is the mean of the softmaxes over parts, weighted by the sums of their
exponentials. So each part comes with the logarithm of that sum, as flash attention keeps it (Dao et
al., 2022), and merging is exact up to rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from flowforge.engine.attention.interface import LayerAttention

Partial: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Results and float32 logarithms of sums: [batch, heads, queries, head_dim] without and with the
last dimension."""


def partial_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: LayerAttention,
    mask: torch.Tensor | None = None,
) -> Partial:
    """Attend to all rows, or to those that a mask leaves.

    q: [batch, heads, queries, head_dim]; k, v: [batch, heads, rows, head_dim], any strides but the
    last. mask: [queries, rows] in the dtype of q, added to the scores.
    """
    if _has_fused(q, layer):
        return _fused(q, k, v, layer, mask, is_causal=False)
    scores = _scores(q, k, layer)
    return _weigh(scores if mask is None else scores + mask, v)


def causal_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: LayerAttention
) -> Partial:
    """Attend to the rows up to each query's own; as many rows as queries."""
    if _has_fused(q, layer):
        return _fused(q, k, v, layer, None, is_causal=True)
    scores = _scores(q, k, layer)
    is_later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return _weigh(scores.masked_fill(is_later, float("-inf")), v)


def merge(first: Partial, second: Partial) -> Partial:
    """What the rows of both parts give together; in float32."""
    (out, lse), (other, other_lse) = first, second
    # e^a / (e^a + e^b) is the logistic function of a - b.
    share = torch.sigmoid(other_lse - lse).unsqueeze(-1)
    return torch.lerp(out.float(), other.float(), share), torch.logaddexp(lse, other_lse)


def _has_fused(q: torch.Tensor, layer: LayerAttention) -> bool:
    return layer.softcap is None and q.device.type == "cpu"


def _fused(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: LayerAttention,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
) -> Partial:
    # What scaled_dot_product_attention calls on a CPU; only here it says its sums.
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, is_causal, attn_mask=mask, scale=layer.scale
    )
    return out, lse


def _scores(q: torch.Tensor, k: torch.Tensor, layer: LayerAttention) -> torch.Tensor:
    scores = (q @ k.transpose(-2, -1)).float()
    if layer.softcap is None:
        return scores * layer.scale
    return layer.softcap * torch.tanh(scores * (layer.scale / layer.softcap))


def _weigh(scores: torch.Tensor, v: torch.Tensor) -> Partial:
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp().to(v.dtype) @ v, lse
