"""Paged attention in plain torch: the CPU path, and what kernels are compared with.

A sequence's context is a short list of row ranges (extents of adjacent pages). One range is read as
a view; several are gathered once per layer. The query heads that share a KV head are folded into
the query length, so grouped-query attention needs no repeated K and V.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a step: its query rows and the KV rows it may read.

    query_start, query_len: rows of the step's q, k, v. ranges: (first slot, number of slots), in
    token order, that cover all context including this step's own tokens.
    """

    query_start: int
    query_len: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def context_len(self) -> int:
        """Tokens this span's last query attends to."""
        return sum(length for _, length in self.ranges)


class PagedAttention:
    """One step's attention over the KV tensors; satisfies `AttentionStep`.

    rows: [num_layers, 2, num_kv_heads, num_slots, head_dim], written in place.
    slots: int64 [num_tokens], the row of each token of the step.
    """

    def __init__(self, rows: torch.Tensor, slots: torch.Tensor, spans: tuple[Span, ...]) -> None:
        self._rows = rows
        self._slots = slots
        self._spans = spans
        self._masks = [_causal_mask(span, rows.device) for span in spans]

    def attend(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        keys, values = self._rows[layer_idx, 0], self._rows[layer_idx, 1]
        keys.index_copy_(1, self._slots, k.transpose(0, 1))
        values.index_copy_(1, self._slots, v.transpose(0, 1))
        if len(self._spans) == 1:
            return _attend_span(q, keys, values, self._spans[0], self._masks[0])
        parts = [
            _attend_span(
                q[span.query_start : span.query_start + span.query_len], keys, values, span, mask
            )
            for span, mask in zip(self._spans, self._masks, strict=True)
        ]
        return torch.cat(parts)


def _attend_span(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    span: Span,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    query_len, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[0]
    group = num_heads // num_kv_heads
    # [query_len, num_heads, d] -> [num_kv_heads, group * query_len, d]
    folded = q.view(query_len, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    folded = folded.reshape(1, num_kv_heads, group * query_len, head_dim)
    k = _gather(keys, span.ranges).unsqueeze(0)  # [1, num_kv_heads, context_len, d]
    v = _gather(values, span.ranges).unsqueeze(0)
    if mask is not None:
        mask = mask.repeat(group, 1)
    out = scaled_dot_product_attention(folded, k, v, attn_mask=mask)
    out = out.view(num_kv_heads, group, query_len, head_dim).permute(2, 0, 1, 3)
    return out.reshape(query_len, num_heads, head_dim)


def _gather(rows: torch.Tensor, ranges: tuple[tuple[int, int], ...]) -> torch.Tensor:
    if len(ranges) == 1:
        start, length = ranges[0]
        return rows[:, start : start + length]
    return torch.cat([rows[:, start : start + length] for start, length in ranges], dim=1)


def _causal_mask(span: Span, device: torch.device) -> torch.Tensor | None:
    """Additive mask [query_len, context_len]; a single query sees everything and needs none."""
    if span.query_len == 1:
        return None
    first = span.context_len - span.query_len
    query = torch.arange(first, span.context_len, device=device).unsqueeze(1)
    return torch.arange(span.context_len, device=device).unsqueeze(0) <= query
