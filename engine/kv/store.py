"""The KV tensors: where the rows that pages stand for really are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import torch

from flowforge.engine.float8 import FLOAT8, SCALE
from flowforge.engine.kernels.presence import has_kernels
from flowforge.engine.kv.host_rows import HostRows
from flowforge.engine.kv.host_tier import Offload, Restore
from flowforge.engine.kv.moves import RowCopy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.engine.kv.moves import RowMove
    from flowforge.engine.kv.pool import PageId


@dataclass(frozen=True, slots=True)
class RowKind:
    """What KV rows are.

    dtype: of the K and V that are stored and read. is_float8: rows are kept in float8, with a scale
    for each head of K and of V.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    is_float8: bool = False

    @property
    def kept_dtype(self) -> torch.dtype:
        """What rows are kept in."""
        return FLOAT8 if self.is_float8 else self.dtype

    @property
    def row_bytes(self) -> int:
        """K and V of one token in one layer, with their scales."""
        of_head = self.head_dim * self.kept_dtype.itemsize
        return 2 * self.num_kv_heads * (of_head + (SCALE.itemsize if self.is_float8 else 0))

    @property
    def token_bytes(self) -> int:
        """K and V of one token in all layers."""
        return self.num_layers * self.row_bytes


class KvStore:
    """Owns the tensors for the K and V of all layers.

    kind: of its rows. rows: [num_layers, 2, num_kv_heads, num_slots, head_dim]; slot = page *
    page_size + offset. Heads come before slots so that a run of adjacent pages is, per head, one
    contiguous block: an attention call reads it as a view. Untouched pages cost address space only.
    scales: float32 [num_layers, 2, num_kv_heads, num_slots] of rows in float8, else None.
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
        is_float8: bool = False,
        num_host_slots: int = 0,
        verifies: bool = False,
    ) -> None:
        """num_host_slots, verifies: of pages in the machine's memory, see `HostRows`."""
        self.page_size = page_size
        self.kind = RowKind(num_layers, num_kv_heads, head_dim, dtype, is_float8)
        shape = (num_layers, 2, num_kv_heads, num_pages * page_size, head_dim)
        self.rows = torch.empty(shape, dtype=self.kind.kept_dtype, device=device)
        self.scales = torch.empty(shape[:-1], dtype=SCALE, device=device) if is_float8 else None
        self._host = (
            HostRows(self._planes, page_size, num_host_slots, verifies=verifies)
            if num_host_slots > 0
            else None
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's K and V in one layer."""
        return self.kind.row_bytes

    def take_out(self, slots: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Copies of the rows of some slots and of their scales, on the CPU."""
        places = self._places(slots)
        rows, *scales = (plane[..., places, :].cpu() for plane in self._planes)
        return rows.view(self.rows.dtype), scales[0].squeeze(-1) if scales else None

    def put_in(self, slots: Sequence[int], rows: torch.Tensor, scales: torch.Tensor | None) -> None:
        """Write rows that were taken out of an equal store into some slots."""
        places = self._places(slots)
        for plane, part in zip(self._planes, _planes(rows, scales), strict=True):
            plane[..., places, :] = part.to(plane.device)

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

    def poison(self, pages: list[PageId]) -> None:
        """Fill the rows of free pages with NaN: whoever reads one by mistake gives NaN logits."""
        for page in pages:
            start = page * self.page_size
            self.rows[..., start : start + self.page_size, :] = torch.nan
            if self.scales is not None:
                self.scales[..., start : start + self.page_size] = torch.nan

    @property
    def _planes(self) -> tuple[torch.Tensor, ...]:
        return _planes(self.rows, self.scales)

    def _copy(self, copies: list[RowCopy]) -> None:
        if copies and has_kernels(self.rows.device):
            from flowforge.engine.kernels.store import copy_pages

            for plane in self._planes:
                copy_pages(plane, copies, self.page_size)
            return
        for copy in copies:
            source = copy.source * self.page_size
            target = copy.target * self.page_size
            for plane in self._planes:
                plane[..., target : target + copy.num_rows, :] = plane[
                    ..., source : source + copy.num_rows, :
                ]

    def _places(self, slots: Sequence[int]) -> torch.Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self.rows.device)

    def _host_rows(self) -> HostRows:
        assert self._host is not None, "a cache without a host moves nothing there"
        return self._host


def _planes(rows: torch.Tensor, scales: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """All that slots hold, as tensors [num_layers, 2, num_kv_heads, num_slots, size].

    float8 as bytes, which every operator and every GPU can move.
    """
    if scales is None:
        return (rows,)
    return rows.view(torch.uint8), scales.unsqueeze(-1)
