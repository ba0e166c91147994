"""Rows of KV pages in the machine's memory: where the slots of a `HostTier` really are."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import torch

from flowforge.errors import InternalError

if TYPE_CHECKING:
    from flowforge.engine.kv.host_tier import HostSlot
    from flowforge.engine.kv.pool import PageId


class HostRows:
    """Owns the rows of all slots; the KV tensors are borrowed.

    rows: as `KvStore` has them. Beside a GPU the memory is pinned, and copies are only enqueued, on
    the stream that computes: they are in order with it. verifies: compare checksums, for debugging.
    """

    def __init__(
        self, rows: torch.Tensor, page_size: int, num_slots: int, *, verifies: bool = False
    ) -> None:
        self._rows = rows
        self._page_size = page_size
        num_layers, sides, num_heads, _, head_dim = rows.shape
        self._slots = torch.empty(
            (num_slots, num_layers, sides, num_heads, page_size, head_dim),
            dtype=rows.dtype,
            pin_memory=rows.device.type == "cuda",
        )
        self._verifies = verifies
        self._checksums: dict[HostSlot, bytes] = {}

    @torch.inference_mode()
    def offload(self, page: PageId, slot: HostSlot) -> None:
        """Copy a page into a slot."""
        rows = self._rows_of(page)
        self._slots[slot].copy_(rows, non_blocking=True)
        if self._verifies:
            self._checksums[slot] = checksum(rows)

    @torch.inference_mode()
    def restore(self, slot: HostSlot, page: PageId) -> None:
        """Copy a slot into a page. Raises InternalError IN205 for rows that have changed."""
        rows = self._rows_of(page)
        rows.copy_(self._slots[slot], non_blocking=True)
        if self._verifies and checksum(rows) != self._checksums.get(slot):
            raise InternalError(
                "IN205",
                f"the rows of page {page} came back from slot {slot} of the host as other ones",
                help="this is a defect of FlowForge's KV cache: please report it",
            )

    def _rows_of(self, page: PageId) -> torch.Tensor:
        return self._rows.narrow(3, page * self._page_size, self._page_size)


def checksum(rows: torch.Tensor) -> bytes:
    """Of the bits of some rows, wherever they are."""
    plain = rows.cpu().contiguous().view(torch.uint8).flatten().numpy()
    return blake2b(plain.data, digest_size=16).digest()
