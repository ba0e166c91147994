"""Paged attention in plain torch: the CPU path, and what kernels are compared with.

A sequence's context is a short list of row ranges (extents of adjacent pages). One range is read as
a view; several are gathered once per layer. A layer with a window reads the rows of the window
only. The query heads that share a KV head are folded into the query length, so grouped-query
attention needs no repeated K and V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from flowforge.engine.attention.interface import LayerAttention


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


@dataclass(frozen=True, slots=True)
class _Reach:
    """What a span reads in layers of one window; mask: [query_len, rows read], None if all."""

    span: Span
    ranges: tuple[tuple[int, int], ...]
    mask: torch.Tensor | None


class PagedAttention:
    """One step's attention over the KV tensors; satisfies `AttentionStep`.

    rows: [num_layers, 2, num_kv_heads, num_slots, head_dim], written in place.
    slots: int64 [num_tokens], the row of each token of the step.
    """

    def __init__(self, rows: torch.Tensor, slots: torch.Tensor, spans: tuple[Span, ...]) -> None:
        self._rows = rows
        self._slots = slots
        self._spans = spans
        self._reaches: dict[int | None, list[_Reach]] = {}  # by window

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: LayerAttention,
    ) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        keys, values = self._rows[layer_idx, 0], self._rows[layer_idx, 1]
        keys.index_copy_(1, self._slots, k.transpose(0, 1))
        values.index_copy_(1, self._slots, v.transpose(0, 1))
        reaches = self._reaches_within(layer.window)
        if len(reaches) == 1:
            return _attend_span(q, keys, values, reaches[0], layer)
        parts = [
            _attend_span(
                q[reach.span.query_start : reach.span.query_start + reach.span.query_len],
                keys,
                values,
                reach,
                layer,
            )
            for reach in reaches
        ]
        return torch.cat(parts)

    def _reaches_within(self, window: int | None) -> list[_Reach]:
        reaches = self._reaches.get(window)
        if reaches is None:
            device = self._rows.device
            reaches = [_reach(span, window, device) for span in self._spans]
            self._reaches[window] = reaches
        return reaches


def _attend_span(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    reach: _Reach,
    layer: LayerAttention,
) -> torch.Tensor:
    query_len, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[0]
    group = num_heads // num_kv_heads
    # [query_len, num_heads, d] -> [num_kv_heads, group * query_len, d]
    folded = q.view(query_len, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    folded = folded.reshape(1, num_kv_heads, group * query_len, head_dim)
    k = _gather(keys, reach.ranges).unsqueeze(0)  # [1, num_kv_heads, rows read, d]
    v = _gather(values, reach.ranges).unsqueeze(0)
    mask = None if reach.mask is None else reach.mask.repeat(group, 1)
    if layer.softcap is None:
        out = scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=layer.scale)
    else:
        out = _capped_attention(folded, k, v, mask, layer.scale, layer.softcap)
    out = out.view(num_kv_heads, group, query_len, head_dim).permute(2, 0, 1, 3)
    return out.reshape(query_len, num_heads, head_dim)


def _capped_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """What scaled_dot_product_attention cannot do: cap the scores before the mask (Gemma 2)."""
    scores = softcap * torch.tanh((q @ k.transpose(-2, -1)).float() * (scale / softcap))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1).to(v.dtype) @ v


def _gather(rows: torch.Tensor, ranges: tuple[tuple[int, int], ...]) -> torch.Tensor:
    if len(ranges) == 1:
        start, length = ranges[0]
        return rows[:, start : start + length]
    return torch.cat([rows[:, start : start + length] for start, length in ranges], dim=1)


def _reach(span: Span, window: int | None, device: torch.device) -> _Reach:
    first_query = span.context_len - span.query_len
    first_row = 0 if window is None else max(0, first_query - window + 1)
    ranges = _without_first(span.ranges, first_row)
    if span.query_len == 1:
        return _Reach(span, ranges, None)  # a single query sees all that is read
    rows = torch.arange(first_row, span.context_len, device=device)
    distance = rows[first_query - first_row :, None] - rows
    is_seen = distance >= 0
    if window is not None:
        is_seen &= distance < window
    return _Reach(span, ranges, is_seen)


def _without_first(
    ranges: tuple[tuple[int, int], ...], num_rows: int
) -> tuple[tuple[int, int], ...]:
    kept: list[tuple[int, int]] = []
    for start, length in ranges:
        cut = min(num_rows, length)
        num_rows -= cut
        if cut < length:
            kept.append((start + cut, length - cut))
    return tuple(kept)
