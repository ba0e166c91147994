"""What a decoder's layers do between matrix products and attention: by torch, or by GPU kernels.

Kernels do several of torch's operations at once, so the seam lies where they can: a norm comes with
the sum before it, the turning of heads with their norm, a gate with its product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
import torch.nn.functional as F

from flowforge.engine.kernels.presence import has_kernels
from flowforge.engine.models.rope import rotate

if TYPE_CHECKING:
    from flowforge.engine.models.config import Activation

    Angles: TypeAlias = tuple[torch.Tensor, torch.Tensor]
    """Cosines and signed sines as `RotaryEmbedding.angles` gives them."""


class LayerOperators(Protocol):
    """Functions of hidden states [num_tokens, hidden_size] in one dtype; they change no argument.

    weight, post_weight: [hidden_size]; of a wider dtype, their norms are computed in it.
    """

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The root mean square norm of each row."""
        ...

    def add_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        post_weight: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Residual + x, and its norm; x is normed first where there is a post_weight."""
        ...

    def turn_heads(
        self,
        projected: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        angles: Angles | None,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
    ) -> torch.Tensor:
        """Q's and K's heads, normed where there are norms and turned where there are angles.

        projected: [num_tokens, num_heads + 2 · num_kv_heads, head_dim]. norms: of Q's and of K's
        heads, [head_dim] each. Returns [num_tokens, num_heads + num_kv_heads, head_dim].
        """
        ...

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """activation(gate) · up: [num_tokens, size] of [num_tokens, 2 · size], gate first."""
        ...


@dataclass(frozen=True, slots=True)
class TorchOperators:
    """By torch, on any device."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `LayerOperators.norm`."""
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)

    def add_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        post_weight: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `LayerOperators.add_norm`."""
        total = residual + (x if post_weight is None else self.norm(x, post_weight, eps))
        return total, self.norm(total, weight, eps)

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
        heads = projected[:, : num_heads + num_kv_heads]
        if norms is not None:
            parts = heads.split_with_sizes((num_heads, num_kv_heads), dim=1)
            heads = torch.cat(
                [self.norm(part, weight, eps) for part, weight in zip(parts, norms, strict=True)],
                dim=1,
            )
        return heads if angles is None else rotate(heads, *angles)

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See `LayerOperators.gate`."""
        gate, up = gate_up.chunk(2, dim=-1)
        active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
        return active * up


def operators_for(device: torch.device) -> LayerOperators:
    """Kernels where they are for the device, torch elsewhere."""
    if not has_kernels(device):
        return TorchOperators()
    from flowforge.engine.kernels.operators import KernelOperators

    return KernelOperators()
