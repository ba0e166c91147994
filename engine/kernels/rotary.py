"""Heads of Q and K before they attend: a norm where a family has one, and the rotation.

The rotation that encodes positions is RoFormer's (Su et al., 2021).
"""

from __future__ import annotations

import torch
import triton.language as tl

from flowforge.engine.kernels.dialect import Tensor, block_of, jit


def turn_heads(
    projected: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    angles: tuple[torch.Tensor, torch.Tensor] | None,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Q's and K's heads, normed and turned: a new [num_tokens, num_heads + num_kv_heads, head_dim].

    projected: [num_tokens, num_heads + 2 · num_kv_heads, head_dim], contiguous: Q, K, V. angles:
    cosines and signed sines as `RotaryEmbedding.angles` gives them, [num_tokens, 1, num_rows]; the
    first num_rows numbers of a head turn. norms: weights [head_dim] of Q's and of K's heads.
    """
    num_tokens, _, head_dim = projected.shape
    num_turned = num_heads + num_kv_heads
    out = torch.empty(
        (num_tokens, num_turned, head_dim), dtype=projected.dtype, device=projected.device
    )
    cosines, sines = (projected, projected) if angles is None else angles
    q_norm, k_norm = (projected, projected) if norms is None else norms
    _turn_kernel[(num_tokens, num_turned)](
        projected,
        cosines,
        sines,
        q_norm,
        k_norm,
        out,
        eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        NUM_ROWS=0 if angles is None else cosines.shape[-1],
        HAS_NORM=norms is not None,
        BLOCK_D=block_of(head_dim, 1),
        num_warps=1,
    )
    return out


@jit
def _turn_kernel(
    projected: Tensor,
    cosines: Tensor,
    sines: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    out: Tensor,
    eps: float,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    is_real = d < HEAD_DIM
    row = projected + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM
    x = tl.load(row + d, mask=is_real, other=0.0).to(tl.float32)
    turns = d < NUM_ROWS
    other = tl.where(d < NUM_ROWS // 2, d + NUM_ROWS // 2, d - NUM_ROWS // 2)
    partner = tl.load(row + other, mask=turns, other=0.0).to(tl.float32)
    if HAS_NORM:
        is_q = head < NUM_HEADS
        shrink = tl.rsqrt(tl.sum(x * x, axis=0) / HEAD_DIM + eps)
        dtype = out.dtype.element_ty
        factors = _chosen(q_norm + d, k_norm + d, is_real, is_q)
        x = (x * shrink * factors).to(dtype).to(tl.float32)
        factors = _chosen(q_norm + other, k_norm + other, turns, is_q)
        partner = (partner * shrink * factors).to(dtype).to(tl.float32)
    if NUM_ROWS > 0:
        cosine = tl.load(cosines + token * NUM_ROWS + d, mask=turns, other=0.0).to(tl.float32)
        sine = tl.load(sines + token * NUM_ROWS + d, mask=turns, other=0.0).to(tl.float32)
        x = tl.where(turns, x * cosine + partner * sine, x)
    at = (token * (NUM_HEADS + NUM_KV_HEADS) + head) * HEAD_DIM + d
    tl.store(out + at, x.to(out.dtype.element_ty), mask=is_real)


@jit
def _chosen(q_at: Tensor, k_at: Tensor, mask: Tensor, is_q: Tensor) -> Tensor:
    return tl.where(
        is_q, tl.load(q_at, mask=mask, other=0.0), tl.load(k_at, mask=mask, other=0.0)
    ).to(tl.float32)
