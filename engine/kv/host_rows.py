"""Rows of KV pages in the machine's memory: where the slots of a `HostTier` really are."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import torch

from flowforge.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.kv.host_tier import HostSlot
    from flowforge.engine.kv.pool import PageId


class HostRows:
    """Owns what all slots hold; the KV tensors are borrowed.

    planes: all that a KV row is, each [num_layers, 2, num_kv_heads, num_slots, size]: the rows of
    `KvStore`, and their scales where they have some. Beside a GPU the memory is pinned, and copies
    are only enqueued, on the stream that computes: they are in order with it. verifies: compare
    checksums, for debugging.
    """

    def __init__(
        self,
        planes: Sequence[torch.Tensor],
        page_size: int,
        num_slots: int,
        *,
        verifies: bool = False,
    ) -> None:
        self._planes = tuple(planes)
        self._page_size = page_size
        self._slots = tuple(
            torch.empty(
                (num_slots, *plane.shape[:3], page_size, plane.shape[4]),
                dtype=plane.dtype,
                pin_memory=plane.device.type == "cuda",
            )
            for plane in self._planes
        )
        self._verifies = verifies
        self._checksums: dict[HostSlot, bytes] = {}

    @torch.inference_mode()
    def offload(self, page: PageId, slot: HostSlot) -> None:
        """Copy a page into a slot."""
        parts = self._parts_of(page)
        for part, slots in zip(parts, self._slots, strict=True):
            slots[slot].copy_(part, non_blocking=True)
        if self._verifies:
            self._checksums[slot] = checksum(*parts)

    @torch.inference_mode()
    def restore(self, slot: HostSlot, page: PageId) -> None:
        """Copy a slot into a page. Raises InternalError IN205 for rows that have changed."""
        parts = self._parts_of(page)
        for part, slots in zip(parts, self._slots, strict=True):
            part.copy_(slots[slot], non_blocking=True)
        if self._verifies and checksum(*parts) != self._checksums.get(slot):
            raise InternalError(
                "IN205",
                f"the rows of page {page} came back from slot {slot} of the host as other ones",
                help="this is a defect of FlowForge's KV cache: please report it",
            )

    def _parts_of(self, page: PageId) -> list[torch.Tensor]:
        start = page * self._page_size
        return [plane.narrow(3, start, self._page_size) for plane in self._planes]


def checksum(*parts: torch.Tensor) -> bytes:
    """Of the bits of some tensors, wherever they are."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part.cpu().contiguous().view(torch.uint8).flatten().numpy().data)
    return digest.digest()
