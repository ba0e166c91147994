"""The one door between a decoder and its KV pages: torch and Triton stand behind the same door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """How one layer attends: what differs between layers and between model families.

    scale: multiplies Q·K. window: tokens that a query sees, itself included; None for all.
    softcap: c for which scores s become c · tanh(s / c), before the mask; None: as they are.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None


class AttentionStep(Protocol):
    """One forward pass's view of the KV cache: which rows each token reads and writes.

    Built once per step by the runner and used by every layer, so no layer plans anything.
    """

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: LayerAttention,
    ) -> torch.Tensor:
        """Store this step's K and V, then attend causally over each sequence's context.

        q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim], with
        position encoding applied, in the dtype of the cache. layer: the same for all calls with
        one layer_idx. Tokens of one sequence are adjacent and in order.
        Returns [num_tokens, num_heads, head_dim]. Writes K and V into the pages in place.
        """
        ...


def with_whole_rows(tensor: torch.Tensor) -> torch.Tensor:
    """[num_tokens, heads, head_dim] whose heads lie side by side; tokens may lie apart."""
    heads, head_dim = tensor.shape[1:]
    is_whole = tensor.stride(2) == 1 and (heads == 1 or tensor.stride(1) == head_dim)
    return tensor if is_whole else tensor.contiguous()
