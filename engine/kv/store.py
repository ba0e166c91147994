"""The KV tensors: where the rows that pages stand for really are."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import torch

from flowforge.engine.kernels.presence import has_kernels
from flowforge.engine.kv.cache import RowCopy
from flowforge.engine.kv.host_rows import HostRows
from flowforge.engine.kv.host_tier import Offload, Restore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.engine.kv.cache import RowMove
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
        num_host_slots: int = 0,
        verifies: bool = False,
    ) -> None:
        """num_host_slots, verifies: of pages in the machine's memory, see `HostRows`."""
        self.page_size = page_size
        shape = (num_layers, 2, num_kv_heads, num_pages * page_size, head_dim)
        self.rows = torch.empty(shape, dtype=dtype, device=device)
        self._host = (
            HostRows(self.rows, page_size, num_host_slots, verifies=verifies)
            if num_host_slots > 0
            else None
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's K and V in one layer."""
        _, _, num_kv_heads, _, head_dim = self.rows.shape
        return 2 * num_kv_heads * head_dim * self.rows.dtype.itemsize

    def move_rows(self, moves: Iterable[RowMove]) -> None:
        """Carry out moves in the order given. Raises InternalError IN205 where it verifies."""
        copies: list[RowCopy] = []  # that follow each other
        for move in moves:
            if isinstance(move, RowCopy):
                copies.append(move)
                continue
            self._copy(copies)
            copies = []
            match move:
                case Offload(page, slot):
                    self._host_rows().offload(page, slot)
                case Restore(slot, page):
                    self._host_rows().restore(slot, page)
                case _:
                    assert_never(move)
        self._copy(copies)

    def _copy(self, copies: list[RowCopy]) -> None:
        if copies and has_kernels(self.rows.device):
            from flowforge.engine.kernels.store import copy_pages

            copy_pages(self.rows, copies, self.page_size)
            return
        for copy in copies:
            source = copy.source * self.page_size
            target = copy.target * self.page_size
            self.rows[..., target : target + copy.num_rows, :] = self.rows[
                ..., source : source + copy.num_rows, :
            ]

    def _host_rows(self) -> HostRows:
        assert self._host is not None, "a cache without a host moves nothing there"
        return self._host

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
