"""The one door between a decoder and its KV pages: torch and Triton stand behind the same door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class AttentionStep(Protocol):
    """One forward pass's view of the KV cache: which rows each token reads and writes.

    Built once per step by the runner and used by every layer, so no layer plans anything.
    """

    def attend(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Store this step's K and V, then attend causally over each sequence's whole context.

        q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim], with
        position encoding applied, in the dtype of the cache. Softmax scale is head_dim ** -0.5.
        Tokens of one sequence are adjacent and in order. Returns [num_tokens, num_heads, head_dim].
        Writes K and V into the pages in place.
        """
        ...
