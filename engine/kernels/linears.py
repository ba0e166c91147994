"""Matrix products of few rows from weights of four and eight bits, as they are kept.

A step of few rows is as quick as its weights are read, so they are read as they are and unpacked in
registers. For more rows a matrix is unpacked once for the product, and torch multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
import triton.language as tl

from flowforge.engine.kernels.dialect import IS_INTERPRETED, Tensor, block_of, cdiv, dot, jit
from flowforge.engine.kernels.store import FP8, FP8_MOST

if TYPE_CHECKING:
    from typing import Literal

    from flowforge.engine.models.quantized import QuantizedKind

GROUP = 32
# Up to so many rows the weights' bytes are what a product costs.
_MOST_ROWS = 64
_BLOCK_N, _BLOCK_K = (16, 32) if IS_INTERPRETED else (64, 128)
# Programs that read weights side by side, and what each must at least read along a row.
_WANTED_PROGRAMS, _LEAST_SPLIT = 264, 512


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [num_rows_out, num_columns_in] in few bits.

    kind: int4, values: uint8 [rows, columns / 2]; byte i of a group of 32 holds number i in its low
    half and number i + 16 in its high one. int8: int8 [rows, columns]. Both with scales and mins,
    float16 [rows, columns / 32]: scale · value + min. fp8: float8 e4m3 [rows, columns], scales
    float32 [rows], no mins.
    """

    kind: Literal["int4", "int8", "fp8"]
    values: torch.Tensor
    scales: torch.Tensor
    mins: torch.Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows out and columns in."""
        rows, columns = self.values.shape
        return rows, columns * 2 if self.kind == "int4" else columns

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix itself; exact in float32."""
        if self.kind == "fp8":
            return (self.values.float() * self.scales[:, None]).to(dtype)
        rows, columns = self.shape
        if self.kind == "int4":
            halves = self.values.view(rows, -1, GROUP // 2)
            numbers = torch.cat((halves & 0xF, halves >> 4), dim=-1).float()
        else:
            numbers = self.values.view(rows, -1, GROUP).float()
        assert self.mins is not None, "groups have their minimum"
        weights = numbers * self.scales.float()[..., None] + self.mins.float()[..., None]
        return weights.view(rows, columns).to(dtype)


def pack_groups(kind: QuantizedKind, stored: torch.Tensor) -> PackedMatrix:
    """Groups of a GGUF file, uint8 [rows, groups, bytes of a group], apart by what they hold.

    So that every load of a kernel is aligned; the numbers are the same.
    """
    rows = len(stored)

    def halves(start: int) -> torch.Tensor:
        return stored[..., start : start + 2].contiguous().view(torch.float16).squeeze(-1)

    scales = halves(0)
    if kind == "q8_0":
        values = stored[..., 2:].contiguous().view(torch.int8).view(rows, -1)
        return PackedMatrix("int8", values, scales, torch.zeros_like(scales))
    mins = halves(2) if kind == "q4_1" else scales * -8
    values = stored[..., -GROUP // 2 :].contiguous().view(rows, -1)
    return PackedMatrix("int4", values, scales, mins)


def pack_fp8(weight: torch.Tensor) -> PackedMatrix:
    """Round a matrix [rows, columns] to float8, each row to its own scale."""
    wide = weight.float()
    most = wide.abs().amax(dim=1)
    scales = torch.where(most > 0, most / FP8_MOST, torch.ones_like(most))
    return PackedMatrix("fp8", (wide / scales[:, None]).to(FP8), scales, None)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The product with a packed matrix, on the matrix's device; satisfies `Linear`."""

    matrix: PackedMatrix
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_rows, columns in]; in its dtype, sums in float32."""
        if x.shape[0] > _MOST_ROWS:
            return F.linear(x, self.matrix.unpacked(x.dtype), self.bias)
        out = packed_linear(x, self.matrix)
        return out if self.bias is None else out + self.bias


def packed_linear(x: torch.Tensor, matrix: PackedMatrix) -> torch.Tensor:
    """X @ matrixᵀ by the kernel: [num_rows, rows out]; x: [num_rows, columns in], few rows."""
    num_rows, depth = x.shape
    num_rows_out, _ = matrix.shape
    x = x.contiguous()
    block_m = block_of(min(num_rows, _MOST_ROWS))
    num_blocks = cdiv(num_rows_out, _BLOCK_N)
    # By the matrix alone, so that a row's sums are taken in one order in every batch.
    wanted = min(_WANTED_PROGRAMS // num_blocks, depth // _LEAST_SPLIT, 8)
    num_splits = max(1, wanted)
    split = cdiv(cdiv(depth, num_splits), _BLOCK_K) * _BLOCK_K
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
        HAS_GROUPS=matrix.kind != "fp8",
        BLOCK_M=block_m,
        BLOCK_N=_BLOCK_N,
        BLOCK_K=_BLOCK_K,
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
