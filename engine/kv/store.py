"""The KV tensors: where the rows that pages stand for really are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.engine.kv.cache import RowCopy
    from flowforge.engine.kv.pool import PageId


class KvStore:
    """Owns one tensor for the K and V of all layers.

    rows: [num_layers, 2, num_kv_heads, num_slots, head_dim]; slot = page * page_size + offset.
    Heads come before slots so that a run of adjacent pages is, per head, one contiguous block: an
    attention call reads it as a view. Untouched pages cost address space only.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.page_size = page_size
        shape = (num_layers, 2, num_kv_heads, num_pages * page_size, head_dim)
        self.rows = torch.empty(shape, dtype=dtype, device=device)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's K and V in one layer."""
        _, _, num_kv_heads, _, head_dim = self.rows.shape
        return 2 * num_kv_heads * head_dim * self.rows.dtype.itemsize

    def copy_rows(self, copies: Iterable[RowCopy]) -> None:
        """Carry out copies in the order given."""
        for copy in copies:
            source = copy.source * self.page_size
            target = copy.target * self.page_size
            self.rows[..., target : target + copy.num_rows, :] = self.rows[
                ..., source : source + copy.num_rows, :
            ]

    def poison(self, pages: list[PageId]) -> None:
        """Fill the rows of free pages with NaN: whoever reads one by mistake gives NaN logits."""
        for page in pages:
            start = page * self.page_size
            self.rows[..., start : start + self.page_size, :] = torch.nan


def bytes_per_token(
    *, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> int:
    """KV bytes that one token needs over all layers."""
    return num_layers * 2 * num_kv_heads * head_dim * dtype.itemsize
