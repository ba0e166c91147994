"""Paged attention in plain torch: the CPU path, and what kernels are compared with.

A sequence's context is a short list of row ranges (extents of adjacent pages). A range is read as a
view; ranges that are short and scattered are copied together, once for all that read them. The
query heads that share a KV head are folded into the query length, so grouped-query attention needs
no repeated K and V, and the queries of a segment's readers are stacked in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import torch

from flowforge.engine.attention.partial import causal_attention, merge, partial_attention
from flowforge.engine.attention.reads import NEVER_SPLIT, num_rows_read, plan_reads
from flowforge.engine.float8 import from_float8, to_float8

if TYPE_CHECKING:
    from flowforge.engine.attention.interface import LayerAttention
    from flowforge.engine.attention.partial import Partial
    from flowforge.engine.attention.reads import (
        MoreRead,
        OwnRead,
        Ranges,
        ReadPlan,
        Segment,
        Span,
        SplitPolicy,
    )

_Rows: TypeAlias = slice | torch.Tensor  # of folded queries


@dataclass(frozen=True, slots=True)
class _Reads:
    """A plan for layers of one window, with what torch needs of it.

    own: each with the token rows of its span and its mask. more: each with its folded queries.
    """

    own: tuple[tuple[OwnRead, slice, torch.Tensor | None], ...]
    more: tuple[tuple[MoreRead, _Rows], ...]


class PagedAttention:
    """One step's attention over the KV tensors; satisfies `AttentionStep`.

    rows: [num_layers, 2, num_kv_heads, num_slots, head_dim], written in place. scales: float32,
    without the last dimension, of rows in float8, which are read in the dtype of the queries.
    slots: int64 [num_tokens], the row of each token of the step. spans: of adjacent queries, in
    order. segments: what spans have in common; whether it is read once, policy decides.
    """

    def __init__(
        self,
        rows: torch.Tensor,
        slots: torch.Tensor,
        spans: tuple[Span, ...],
        segments: tuple[Segment, ...] = (),
        policy: SplitPolicy = NEVER_SPLIT,
        scales: torch.Tensor | None = None,
    ) -> None:
        self._rows = rows
        self._scales = scales
        self._slots = slots
        self._spans = spans
        self._segments = segments
        self._policy = policy
        self._longest = max(span.context_len for span in spans)
        self._reads: dict[int | None, _Reads] = {}  # by window

    @property
    def num_rows_read(self) -> int:
        """KV rows that are read in one layer without a window."""
        plan = plan_reads(self._spans, self._segments, self._policy)
        return num_rows_read(plan, self._spans)

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: LayerAttention,
    ) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        keys, values = (self._side(layer_idx, side) for side in (0, 1))
        # What later steps read of this one is what it reads itself.
        k, v = keys.store(self._slots, k), values.store(self._slots, v)
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads = k.shape[1]
        # [num_tokens, num_heads, d] -> [num_kv_heads, 1, num_tokens · group, d]
        folded = q.view(num_tokens, num_kv_heads, -1, head_dim).transpose(0, 1)
        folded = folded.reshape(num_kv_heads, 1, -1, head_dim)
        call = _LayerCall(folded, keys, values, k, v, layer)
        out = call.run(self._reads_within(layer.window, num_heads // num_kv_heads, q.dtype))
        out = out.view(num_kv_heads, num_tokens, -1, head_dim).transpose(0, 1)
        return out.reshape(num_tokens, num_heads, head_dim).to(q.dtype)

    def _side(self, layer_idx: int, side: int) -> _Side:
        scales = None if self._scales is None else self._scales[layer_idx, side]
        return _Side(self._rows[layer_idx, side], scales)

    def _reads_within(self, window: int | None, group: int, dtype: torch.dtype) -> _Reads:
        if window is not None and window >= self._longest:
            window = None
        reads = self._reads.get(window)
        if reads is None:
            plan = plan_reads(self._spans, self._segments, self._policy, window)
            reads = self._reads[window] = self._prepared(plan, window, group, dtype)
        return reads

    def _prepared(
        self, plan: ReadPlan, window: int | None, group: int, dtype: torch.dtype
    ) -> _Reads:
        own = tuple(
            (read, slice(span.query_start, span.query_start + span.query_len), mask)
            for read, span in zip(plan.own, self._spans, strict=True)
            for mask in [self._mask(span, window, group, dtype) if read.kind == "masked" else None]
        )
        more = tuple((read, self._folded_rows(read.readers, group)) for read in plan.more)
        return _Reads(own, more)

    def _folded_rows(self, readers: tuple[int, ...], group: int) -> _Rows:
        spans = [self._spans[reader] for reader in readers]
        bounds = [
            (span.query_start * group, (span.query_start + span.query_len) * group)
            for span in spans
        ]
        if all(stop == start for (_, stop), (start, _) in pairwise(bounds)):
            return slice(bounds[0][0], bounds[-1][1])
        return torch.cat([torch.arange(*bound, device=self._rows.device) for bound in bounds])

    def _mask(self, span: Span, window: int | None, group: int, dtype: torch.dtype) -> torch.Tensor:
        """What is added to the scores of a span's folded queries: 0 for rows seen, else -inf."""
        assert window is not None, "without a window nothing is masked"
        first_query = span.context_len - span.query_len
        first_row = max(0, first_query - window + 1)
        rows = torch.arange(first_row, span.context_len, device=self._rows.device)
        distance = rows[first_query - first_row :, None] - rows
        is_hidden = (distance < 0) | (distance >= window)
        mask = torch.zeros_like(is_hidden, dtype=dtype)
        mask.masked_fill_(is_hidden, float("-inf"))
        return mask.repeat_interleave(group, dim=0)


@dataclass(frozen=True, slots=True)
class _Side:
    """K or V of one layer.

    rows: [num_kv_heads, num_slots, head_dim]. scales: [num_kv_heads, num_slots] of float8 rows.
    """

    rows: torch.Tensor
    scales: torch.Tensor | None

    def store(self, slots: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Write rows [num_tokens, num_kv_heads, head_dim]; returns them as they will be read."""
        if self.scales is None:
            self.rows.index_copy_(1, slots, new.transpose(0, 1))
            return new
        values, scales = to_float8(new)
        # As bytes: few of torch's operators know float8.
        kept = self.rows.view(torch.uint8)
        kept.index_copy_(1, slots, values.view(torch.uint8).transpose(0, 1))
        self.scales.index_copy_(1, slots, scales.transpose(0, 1))
        return from_float8(values, scales, new.dtype)

    def rows_of(self, ranges: Ranges, dtype: torch.dtype) -> torch.Tensor:
        """Rows behind each other: [num_kv_heads, 1, num_rows, head_dim]; one run is a view."""
        parts = [self._run(start, length, dtype) for start, length in ranges]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).unsqueeze(1)

    def _run(self, start: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        rows = self.rows.narrow(1, start, length)
        if self.scales is None:
            return rows
        return from_float8(rows, self.scales.narrow(1, start, length), dtype)


@dataclass(frozen=True, slots=True)
class _LayerCall:
    """One layer of one step.

    q: folded, [num_kv_heads, 1, num_tokens · group, head_dim]. k, v: the step's own,
    [num_tokens, num_kv_heads, head_dim].
    """

    q: torch.Tensor
    keys: _Side
    values: _Side
    k: torch.Tensor
    v: torch.Tensor
    layer: LayerAttention

    def run(self, reads: _Reads) -> torch.Tensor:
        """Attention of all queries, folded as q is; float32 where parts were merged."""
        parts = [self._own(*own) for own in reads.own]
        if not reads.more:
            return parts[0][0] if len(parts) == 1 else torch.cat([out for out, _ in parts], dim=2)
        out = torch.cat([out for out, _ in parts], dim=2).float()
        lse = torch.cat([lse for _, lse in parts], dim=2)
        for read, rows in reads.more:
            part = self._over(read.ranges, self.q[:, :, rows])
            merged, merged_lse = merge((out[:, :, rows], lse[:, :, rows]), part)
            out[:, :, rows] = merged
            lse[:, :, rows] = merged_lse
        return out

    def _own(self, read: OwnRead, tokens: slice, mask: torch.Tensor | None) -> Partial:
        group = self.q.shape[2] // self.k.shape[0]
        queries = self.q[:, :, tokens.start * group : tokens.stop * group]
        if read.kind != "causal":
            return self._over(read.ranges, queries, mask)
        num_kv_heads, _, _, head_dim = queries.shape
        num_tokens = tokens.stop - tokens.start
        # [num_kv_heads, group, num_tokens, d]: the heads of a group as heads of one batch entry
        by_head = queries.view(num_kv_heads, num_tokens, group, head_dim).transpose(1, 2)
        k, v = (
            rows[tokens].transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1)
            for rows in (self.k, self.v)
        )
        out, lse = causal_attention(by_head, k, v, self.layer)
        out = out.transpose(1, 2).reshape(num_kv_heads, 1, -1, head_dim)
        return out, lse.transpose(1, 2).reshape(num_kv_heads, 1, -1)

    def _over(
        self, ranges: Ranges, queries: torch.Tensor, mask: torch.Tensor | None = None
    ) -> Partial:
        k, v = (side.rows_of(ranges, queries.dtype) for side in (self.keys, self.values))
        return partial_attention(queries, k, v, self.layer, mask)
