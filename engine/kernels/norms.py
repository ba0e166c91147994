"""Root mean square norms, alone and with the sum that comes before them in a decoder.

RMSNorm is Zhang and Sennrich's (2019). Sums are in float32 whatever the dtype; what a decoder
rounds between two operations is rounded here too.
"""

from __future__ import annotations

import torch
import triton.language as tl

from flowforge.engine.kernels.dialect import Tensor, block_of, jit


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise rows: x / sqrt(mean(x²) + eps) · weight.

    x: [..., size], contiguous. weight: [size], of any floating dtype.
    """
    size = x.shape[-1]
    out = torch.empty_like(x)
    _norm_kernel[(x.numel() // size,)](
        x,
        weight,
        out,
        eps,
        SIZE=size,
        BLOCK=block_of(size, 1),
        num_warps=_num_warps(size),
    )
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    post_weight: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual + x, and its norm.

    x, residual: [num_rows, size], contiguous, of one dtype. post_weight: x is normalised with it
    first (Gemma). Returns two new tensors.
    """
    num_rows, size = x.shape
    total, out = torch.empty_like(x), torch.empty_like(x)
    _add_norm_kernel[(num_rows,)](
        x,
        residual,
        weight,
        weight if post_weight is None else post_weight,
        total,
        out,
        eps,
        SIZE=size,
        BLOCK=block_of(size, 1),
        HAS_POST=post_weight is not None,
        num_warps=_num_warps(size),
    )
    return total, out


def _num_warps(size: int) -> int:
    """Up to sixteen numbers for each thread."""
    return min(16, max(1, block_of(size, 1) // 512))


@jit
def normalised(row: Tensor, weight: Tensor, eps: float, SIZE: tl.constexpr) -> Tensor:
    """A row of float32 numbers, zeros behind SIZE, after its norm."""
    mean = tl.sum(row * row, axis=0) / SIZE
    return row * tl.rsqrt(mean + eps) * weight


@jit
def _norm_kernel(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    eps: float,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.arange(0, BLOCK)
    is_real = at < SIZE
    begin = tl.program_id(0).to(tl.int64) * SIZE
    row = tl.load(x + begin + at, mask=is_real, other=0.0).to(tl.float32)
    factors = tl.load(weight + at, mask=is_real, other=0.0).to(tl.float32)
    result = normalised(row, factors, eps, SIZE)
    tl.store(out + begin + at, result.to(out.dtype.element_ty), mask=is_real)


@jit
def _add_norm_kernel(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    post_weight: Tensor,
    total: Tensor,
    out: Tensor,
    eps: float,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_POST: tl.constexpr,
) -> None:
    at = tl.arange(0, BLOCK)
    is_real = at < SIZE
    begin = tl.program_id(0).to(tl.int64) * SIZE
    row = tl.load(x + begin + at, mask=is_real, other=0.0).to(tl.float32)
    if HAS_POST:
        factors = tl.load(post_weight + at, mask=is_real, other=0.0).to(tl.float32)
        row = normalised(row, factors, eps, SIZE).to(out.dtype.element_ty).to(tl.float32)
    before = tl.load(residual + begin + at, mask=is_real, other=0.0).to(tl.float32)
    added = (before + row).to(total.dtype.element_ty)
    tl.store(total + begin + at, added, mask=is_real)
    factors = tl.load(weight + at, mask=is_real, other=0.0).to(tl.float32)
    result = normalised(added.to(tl.float32), factors, eps, SIZE)
    tl.store(out + begin + at, result.to(out.dtype.element_ty), mask=is_real)
