"""Matrix products of few rows from weights of four and eight bits, as they are kept.

A step of few rows is as quick as its weights are read, so they are read as they are and unpacked in
registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton.language as tl

from flowforge.engine.kernels.dialect import IS_INTERPRETED, Tensor, block_of, cdiv, dot, jit

if TYPE_CHECKING:
    from flowforge.engine.models.packed import PackedMatrix

MOST_ROWS = 64
"""Up to so many rows the weights' bytes are what a product costs."""
# There are no units for exact products of float32, and larger tiles of it do not fit registers.
_TILE = (16, 32) if IS_INTERPRETED else (64, 128)
_FLOAT32_TILE = (16, 32) if IS_INTERPRETED else (32, 32)
# Programs that read weights side by side, and what each must at least read along a row.
_WANTED_PROGRAMS, _LEAST_SPLIT = 264, 512


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The product of few rows with a packed matrix, on its device; satisfies `Linear`."""

    matrix: PackedMatrix
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_rows, columns in]; in its dtype, sums in float32."""
        out = packed_linear(x, self.matrix)
        return out if self.bias is None else out + self.bias


def packed_linear(x: torch.Tensor, matrix: PackedMatrix) -> torch.Tensor:
    """X @ matrixᵀ by the kernel: [num_rows, rows out]; x: [num_rows, columns in], few rows."""
    num_rows, depth = x.shape
    num_rows_out, _ = matrix.shape
    x = x.contiguous()
    block_m = block_of(min(num_rows, MOST_ROWS))
    block_n, block_k = _TILE if x.itemsize <= 2 else _FLOAT32_TILE
    num_blocks = cdiv(num_rows_out, block_n)
    # By the matrix alone, so that a row's sums are taken in one order in every batch.
    wanted = min(_WANTED_PROGRAMS // num_blocks, depth // _LEAST_SPLIT, 8)
    num_splits = max(1, wanted)
    split = cdiv(cdiv(depth, num_splits), block_k) * block_k
    sums = torch.empty((num_splits, num_rows, num_rows_out), dtype=torch.float32, device=x.device)
    scales, mins = matrix.scales, matrix.scales if matrix.mins is None else matrix.mins
    _linear_kernel[(num_blocks, cdiv(num_rows, block_m), num_splits)](
        x,
        matrix.values,
        scales,
        mins,
        sums,
        num_rows,
        num_rows_out,
        depth,
        split,
        IS_INT4=matrix.kind == "int4",
        HAS_GROUPS=matrix.kind != "float8",
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=4,
        num_stages=3,
    )
    return (sums[0] if num_splits == 1 else sums.sum(0)).to(x.dtype)


@jit
def _linear_kernel(
    x: Tensor,
    values: Tensor,
    scales: Tensor,
    mins: Tensor,
    sums: Tensor,
    num_rows: int,
    num_rows_out: int,
    depth: int,
    split: int,
    IS_INT4: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(2)
    is_row = (m < num_rows)[:, None]
    is_out = (n < num_rows_out)[:, None]
    x_rows = x + m.to(tl.int64)[:, None] * depth
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    stop = tl.minimum(depth, (part + 1) * split)
    for first in range(part * split, stop, BLOCK_K):
        if IS_INT4:
            # Half a tile of bytes is a tile of numbers: the low halves and the high ones, each with
            # the columns of x that belong to them.
            byte = tl.arange(0, BLOCK_K // 2)
            low = first + byte // 16 * 32 + byte % 16
            is_byte = (low < stop)[None, :]
            at = n.to(tl.int64)[:, None] * (depth // 2) + (first // 2 + byte)[None, :]
            packed = tl.load(values + at, mask=is_out & is_byte, other=0)
            of_group = n.to(tl.int64)[:, None] * (depth // 32) + (low // 32)[None, :]
            scale = tl.load(scales + of_group, mask=is_out & is_byte, other=0.0).to(tl.float32)
            least = tl.load(mins + of_group, mask=is_out & is_byte, other=0.0).to(tl.float32)
            x_low = tl.load(x_rows + low[None, :], mask=is_row & is_byte, other=0.0)
            x_high = tl.load(x_rows + low[None, :] + 16, mask=is_row & is_byte, other=0.0)
            w_low = ((packed & 0xF).to(tl.float32) * scale + least).to(x.dtype.element_ty)
            w_high = ((packed >> 4).to(tl.float32) * scale + least).to(x.dtype.element_ty)
            total = dot(x_low, tl.trans(w_low), total)
            total = dot(x_high, tl.trans(w_high), total)
        else:
            k = first + tl.arange(0, BLOCK_K)
            is_k = (k < stop)[None, :]
            at = n.to(tl.int64)[:, None] * depth + k[None, :]
            w = tl.load(values + at, mask=is_out & is_k, other=0.0).to(tl.float32)
            if HAS_GROUPS:
                of_group = n.to(tl.int64)[:, None] * (depth // 32) + (k // 32)[None, :]
                w *= tl.load(scales + of_group, mask=is_out & is_k, other=0.0).to(tl.float32)
                w += tl.load(mins + of_group, mask=is_out & is_k, other=0.0).to(tl.float32)
            rows = tl.load(x_rows + k[None, :], mask=is_row & is_k, other=0.0)
            total = dot(rows, tl.trans(w.to(x.dtype.element_ty)), total)
    if not HAS_GROUPS:
        total *= tl.load(scales + n, mask=n < num_rows_out, other=0.0)[None, :]
    at = (part.to(tl.int64) * num_rows + m[:, None]) * num_rows_out + n[None, :]
    tl.store(sums + at, total, mask=is_row & (n < num_rows_out)[None, :])
