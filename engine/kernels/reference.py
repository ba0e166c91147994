"""What each kernel computes, in plain torch: with the kernels' names and arguments, on any device.

Attention has its reference in `engine/attention/reference.py`, sampling in `engine/sampling.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from flowforge.engine.float8 import to_float8
from flowforge.engine.models.rope import rotate

if TYPE_CHECKING:
    from typing import Literal

    from flowforge.engine.kernels.merging import PartLists, Parts
    from flowforge.engine.models.packed import PackedMatrix


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `norms.rms_norm`."""
    normed = F.rms_norm(x.float(), weight.shape, weight.float(), eps)
    return normed.to(x.dtype)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    post_weight: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `norms.add_rms_norm`."""
    total = residual + (x if post_weight is None else rms_norm(x, post_weight, eps))
    return total, rms_norm(total, weight, eps)


def turn_heads(
    projected: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    angles: tuple[torch.Tensor, torch.Tensor] | None,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """See `rotary.turn_heads`."""
    heads = list(projected[:, : num_heads + num_kv_heads].split((num_heads, num_kv_heads), dim=1))
    if norms is not None:
        heads = [rms_norm(part, weight, eps) for part, weight in zip(heads, norms, strict=True)]
    turned = torch.cat(heads, dim=1)
    if angles is None:
        return turned
    cosines, sines = angles
    return rotate(turned.float(), cosines.float(), sines.float()).to(projected.dtype)


def gated(gate_up: torch.Tensor, activation: Literal["silu", "gelu_tanh"]) -> torch.Tensor:
    """See `gates.gated`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return (active * up).to(gate_up.dtype)


def store_rows(
    k: torch.Tensor,
    v: torch.Tensor,
    layer_rows: torch.Tensor,
    slots: torch.Tensor,
    layer_scales: torch.Tensor | None = None,
) -> None:
    """See `store.store_rows`."""
    is_real = slots >= 0
    for side, part in enumerate((k, v)):
        rows = part[is_real].transpose(0, 1)  # [num_kv_heads, num_tokens, head_dim]
        if layer_scales is not None:
            rows, scales = to_float8(rows)
            layer_scales[side][:, slots[is_real]] = scales
        layer_rows[side][:, slots[is_real]] = rows.to(layer_rows.dtype)


def copy_slots(
    rows: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, num_rows: torch.Tensor
) -> None:
    """See `store.copy_slots`."""
    runs = zip(sources.tolist(), targets.tolist(), num_rows.tolist(), strict=True)
    for source, target, length in runs:
        rows[:, target : target + length] = rows[:, source : source + length].clone()


def merge_parts(parts: Parts, lists: PartLists, out: torch.Tensor) -> None:
    """See `merging.merge_parts`."""
    first = lists.first.tolist()
    for idx, token in enumerate(lists.tokens[: int(lists.count)].tolist()):
        own = lists.parts[first[idx] : first[idx + 1]].long()
        shares = torch.softmax(parts.logs[own] * torch.log(torch.tensor(2.0)), dim=0)
        found = (parts.found[own] * shares[..., None]).sum(0)
        out[token] = found.to(out.dtype)


def packed_linear(x: torch.Tensor, matrix: PackedMatrix) -> torch.Tensor:
    """See `linears.packed_linear`."""
    return F.linear(x.float(), matrix.unpacked(torch.float32)).to(x.dtype)
