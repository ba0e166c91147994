"""KV rows into their slots, and from one slot into another.

The tensors are one layer's K and V of the KV store, heads before slots; see `KvStore`. Rows in
float8 e4m3 come with one float32 scale for each head, so that nothing has to be calibrated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton.language as tl

from flowforge.engine.kernels.dialect import Tensor, block_of, jit, to_fp8

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.kv.moves import RowCopy

_COPY_BLOCK = 1024


def store_rows(
    k: torch.Tensor,
    v: torch.Tensor,
    layer_rows: torch.Tensor,
    slots: torch.Tensor,
    layer_scales: torch.Tensor | None = None,
) -> None:
    """Write a step's K and V into their slots.

    k, v: [num_tokens, num_kv_heads, head_dim], heads side by side, tokens may lie apart.
    layer_rows: [2, num_kv_heads, num_slots, head_dim], contiguous, in their dtype or in `FLOAT8`,
    then with layer_scales, float32 [2, num_kv_heads, num_slots]. slots: integers [num_tokens],
    distinct; a negative one skips its row (padding).
    """
    num_tokens, num_heads, head_dim = k.shape
    num_slots = layer_rows.shape[2]
    is_scaled = layer_scales is not None
    _store_kernel[(num_tokens, num_heads)](
        k,
        v,
        layer_rows,
        layer_scales if is_scaled else layer_rows,
        slots,
        k.stride(0),
        v.stride(0),
        num_slots,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_of(head_dim),
        IS_SCALED=is_scaled,
        num_warps=1,
    )


@jit
def _store_kernel(
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    scales: Tensor,
    slots: Tensor,
    k_stride: int,
    v_stride: int,
    num_slots: int,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_SCALED: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        d = tl.arange(0, BLOCK_D)
        is_real = d < HEAD_DIM
        key = tl.load(k + token * k_stride + head * HEAD_DIM + d, mask=is_real, other=0.0)
        value = tl.load(v + token * v_stride + head * HEAD_DIM + d, mask=is_real, other=0.0)
        key_row = head.to(tl.int64) * num_slots + slot
        value_row = (head + NUM_HEADS).to(tl.int64) * num_slots + slot
        if IS_SCALED:
            key, key_scale = _quantised(key)
            value, value_scale = _quantised(value)
            tl.store(scales + key_row, key_scale)
            tl.store(scales + value_row, value_scale)
        tl.store(rows + key_row * HEAD_DIM + d, key, mask=is_real)
        tl.store(rows + value_row * HEAD_DIM + d, value, mask=is_real)


@jit
def _quantised(row: Tensor) -> tuple[Tensor, Tensor]:
    """A row in float8 and its scale: the largest number becomes 448, zeros keep a scale of 1."""
    wide = row.to(tl.float32)
    most = tl.max(tl.abs(wide), axis=0)
    scale = tl.where(most > 0, most / 448.0, 1.0)
    return to_fp8(wide / scale), scale


def copy_slots(
    rows: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, num_rows: torch.Tensor
) -> None:
    """Copy runs of KV rows, all at once: no target may be another copy's source or target.

    rows: [planes, num_slots, size], contiguous: the store's tensor with all before the slots as
    one dimension; the scales of float8 rows as rows of one number. sources, targets: int64
    [num_copies], the first slot of each run. num_rows: int64 [num_copies], its length.
    """
    num_planes, num_slots, size = rows.shape
    most = block_of(min(size * 64, _COPY_BLOCK), 1)
    _copy_kernel[(num_planes, len(sources))](
        rows, sources, targets, num_rows, num_slots, size, BLOCK=most, num_warps=4
    )


@jit
def _copy_kernel(
    rows: Tensor,
    sources: Tensor,
    targets: Tensor,
    num_rows: Tensor,
    num_slots: int,
    size: int,
    BLOCK: tl.constexpr,
) -> None:
    plane = rows + tl.program_id(0).to(tl.int64) * num_slots * size
    source = plane + tl.load(sources + tl.program_id(1)) * size
    target = plane + tl.load(targets + tl.program_id(1)) * size
    num_values = tl.load(num_rows + tl.program_id(1)) * size
    for start in range(0, num_values, BLOCK):
        at = start + tl.arange(0, BLOCK)
        is_real = at < num_values
        tl.store(target + at, tl.load(source + at, mask=is_real), mask=is_real)


def copy_pages(rows: torch.Tensor, copies: Sequence[RowCopy], page_size: int) -> None:
    """Carry out copies of a store's rows as if one after the other, in as few launches as that can.

    rows: [..., num_slots, head_dim], contiguous.
    """
    planes = rows.view(-1, *rows.shape[-2:])
    for wave in waves_of(copies):
        runs = [(copy.source * page_size, copy.target * page_size, copy.num_rows) for copy in wave]
        # One array, so one copy to the device.
        columns = torch.tensor(runs, dtype=torch.int64).T.contiguous().to(rows.device)
        copy_slots(planes, columns[0], columns[1], columns[2])


def waves_of(copies: Sequence[RowCopy]) -> list[list[RowCopy]]:
    """Copies in order, in groups of which each can be carried out at once.

    A copy that reads or writes a page that an earlier one writes, or writes one that an earlier one
    reads, begins the next group.
    """
    waves: list[list[RowCopy]] = []
    read: set[int] = set()
    written: set[int] = set()
    for copy in copies:
        if not waves or {copy.source, copy.target} & written or copy.target in read:
            waves.append([])
            read, written = set(), set()
        waves[-1].append(copy)
        read.add(copy.source)
        written.add(copy.target)
    return waves
