"""What queries found in parts of their contexts, made one by the weights of the parts.

The softmax over all rows is the mean of the softmaxes over parts, weighted by the sums of their
exponentials; in float32, in the order of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton.language as tl

from flowforge.engine.kernels.dialect import Tensor, block_of, jit

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Parts:
    """What items found: float32 [capacity, num_heads, head_dim] and [capacity, num_heads]."""

    found: torch.Tensor
    logs: torch.Tensor


@dataclass(frozen=True, slots=True)
class PartLists:
    """Which parts belong to which query: int32.

    tokens: [capacity], rows of q. first: [capacity + 1], where each one's parts begin in `parts`.
    count: [1].
    """

    tokens: torch.Tensor
    first: torch.Tensor
    parts: torch.Tensor
    count: torch.Tensor


def merge_parts(parts: Parts, lists: PartLists, out: torch.Tensor) -> None:
    """Write what each listed query finds in all of its parts; zeros for one without parts.

    out: [num_tokens, num_heads, head_dim], contiguous.
    """
    _, num_heads, head_dim = out.shape
    if len(lists.tokens) == 0:
        return
    _merge_kernel[(len(lists.tokens), num_heads)](
        parts.found,
        parts.logs,
        lists.tokens,
        lists.first,
        lists.parts,
        lists.count,
        out,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_of(head_dim),
        num_warps=1,
    )


@jit
def _merge_kernel(
    found: Tensor,
    logs: Tensor,
    tokens: Tensor,
    first: Tensor,
    parts: Tensor,
    count: Tensor,
    out: Tensor,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    idx = tl.program_id(0)
    head = tl.program_id(1)
    if idx < tl.load(count):
        d = tl.arange(0, BLOCK_D)
        is_real = d < HEAD_DIM
        total = tl.zeros([BLOCK_D], tl.float32)
        weight = 0.0
        most = float("-inf")
        for at in range(tl.load(first + idx), tl.load(first + idx + 1)):
            part = tl.load(parts + at).to(tl.int64) * NUM_HEADS + head
            log = tl.load(logs + part)
            highest = tl.maximum(most, log)
            base = tl.where(highest == float("-inf"), 0.0, highest)
            decay = tl.exp2(most - base)
            share = tl.exp2(log - base)
            total = total * decay + share * tl.load(found + part * HEAD_DIM + d, is_real, other=0.0)
            weight = weight * decay + share
            most = highest
        result = total / tl.where(weight > 0, weight, 1.0)
        at = (tl.load(tokens + idx).to(tl.int64) * NUM_HEADS + head) * HEAD_DIM + d
        tl.store(out + at, result.to(out.dtype.element_ty), mask=is_real)
