"""Dense attention in plain torch: what the paged paths are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence


class DenseAttention:
    """An AttentionStep over fresh sequences: no pages, no cache, each token sees its own step.

    sequence_lens: tokens of each sequence of the step, in order.
    """

    def __init__(self, sequence_lens: Sequence[int]) -> None:
        self._sequence_lens = list(sequence_lens)

    def attend(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Attend causally inside each sequence; shapes as AttentionStep.attend says."""
        parts = [tensor.split_with_sizes(self._sequence_lens) for tensor in (q, k, v)]
        return torch.cat([_causal(*rows) for rows in zip(*parts, strict=True)])


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    num_shared = q.shape[1] // k.shape[1]
    k, v = (rows.repeat_interleave(num_shared, dim=1) for rows in (k, v))
    q, k, v = (rows.transpose(0, 1) for rows in (q, k, v))  # [num_heads, T, head_dim]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)
