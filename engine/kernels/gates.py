"""The gate of an MLP: activation(gate) · up, from one matrix product's result (Shazeer, 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton.language as tl

from flowforge.engine.kernels.dialect import Tensor, cdiv, jit, sigmoid, tanh

if TYPE_CHECKING:
    from typing import Literal


_BLOCK = 1024
_ROOT = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)


def gated(gate_up: torch.Tensor, activation: Literal["silu", "gelu_tanh"]) -> torch.Tensor:
    """A new [num_rows, size]; gate_up: [num_rows, 2 · size], contiguous, gate first."""
    num_rows, both = gate_up.shape
    size = both // 2
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    _gate_kernel[(num_rows, cdiv(size, _BLOCK))](
        gate_up, out, size, IS_SILU=activation == "silu", BLOCK=_BLOCK, num_warps=4
    )
    return out


@jit
def _gate_kernel(
    gate_up: Tensor, out: Tensor, size: int, IS_SILU: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_real = at < size
    gate = tl.load(gate_up + row * 2 * size + at, mask=is_real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + at, mask=is_real, other=0.0).to(tl.float32)
    if IS_SILU:
        gate = gate * sigmoid(gate)
    else:
        gate = 0.5 * gate * (1.0 + tanh((gate + 0.044715 * gate * gate * gate) * _ROOT))
    gate = gate.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * size + at, (gate * up).to(out.dtype.element_ty), mask=is_real)
