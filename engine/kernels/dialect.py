"""What kernels of all families share, and where Triton's interpreter differs from the compiler.

The interpreter (`TRITON_INTERPRET=1`, read when triton is first imported) runs a kernel on a CPU,
program by program. It multiplies the bits of bfloat16 numbers as if they were integers and
truncates where a GPU rounds to the nearest, so what depends on either is written out here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import triton
import triton.language as tl
from triton import knobs

if TYPE_CHECKING:
    from collections.abc import Callable

    Tensor: TypeAlias = Any
    """Inside kernels: a tensor, a pointer or a number of Triton's, which no type checker knows."""
else:
    Tensor = tl.tensor  # the compiler looks annotations up

IS_INTERPRETED: bool = knobs.runtime.interpret
"""Whether kernels of this process run on the CPU."""

_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)
_MIN_DOT = 16
_FP8_LEAST_NORMAL = tl.constexpr(2.0**-6)
# Adding and taking away 1.5 · 2²³ · 2⁻⁹ rounds to multiples of the least subnormal number.
_FP8_ROUNDER = tl.constexpr(1.5 * 2.0**14)
_FP8_LEAST, _FP8_MOST = tl.constexpr(-448.0), tl.constexpr(448.0)


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit`; a launch is `kernel[grid](...)`, with options beside its arguments."""
    return triton.jit(function)


def block_of(size: int, least: int = _MIN_DOT) -> int:
    """The power of two that holds `size` numbers; tiles of products have at least 16."""
    return max(least, 1 << (size - 1).bit_length())


def cdiv(size: int, block: int) -> int:
    """How many blocks hold `size` numbers."""
    return -(-size // block)


@jit
def dot(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """Total + a @ b in float32: [m, k] @ [k, n], each side at least 16, one dtype."""
    if _IS_INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return tl.dot(a, b, total, input_precision="ieee")


@jit
def tanh(x: Tensor) -> Tensor:
    """In float32; right to 1e-7 of the largest result, 1."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@jit
def sigmoid(x: Tensor) -> Tensor:
    """In float32; overflows nowhere."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1.0 + small)


@jit
def to_fp8(x: Tensor) -> Tensor:
    """float32 to float8 e4m3, to the nearest and even; what is larger than 448 becomes 448."""
    x = tl.minimum(tl.maximum(x, _FP8_LEAST), _FP8_MOST)
    bits = x.to(tl.int32, bitcast=True)
    # A float32's mantissa has 20 bits more: half of the last one that stays, less one if it is 0.
    half = 0x7FFFF + ((bits >> 20) & 1)
    normal = ((bits + half) >> 20 << 20).to(tl.float32, bitcast=True)
    small = (x + _FP8_ROUNDER) - _FP8_ROUNDER
    return tl.where(tl.abs(x) < _FP8_LEAST_NORMAL, small, normal).to(tl.float8e4nv)
