"""The operators of a decoder's layers, by kernels; see `LayerOperators`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.kernels.gates import gated
from flowforge.engine.kernels.norms import add_rms_norm, rms_norm
from flowforge.engine.kernels.rotary import turn_heads

if TYPE_CHECKING:
    import torch

    from flowforge.engine.models.config import Activation
    from flowforge.engine.models.operators import Angles


@dataclass(frozen=True, slots=True)
class KernelOperators:
    """Satisfies `LayerOperators`. Norms are computed in float32 whatever their weights are in."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `LayerOperators.norm`."""
        return rms_norm(x.contiguous(), weight, eps)

    def add_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        post_weight: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `LayerOperators.add_norm`."""
        return add_rms_norm(x.contiguous(), residual.contiguous(), weight, eps, post_weight)

    def turn_heads(
        self,
        projected: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        angles: Angles | None,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
    ) -> torch.Tensor:
        """See `LayerOperators.turn_heads`."""
        return turn_heads(projected.contiguous(), num_heads, num_kv_heads, angles, norms, eps)

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See `LayerOperators.gate`."""
        return gated(gate_up.contiguous(), activation)
