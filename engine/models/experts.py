"""A mixture of experts as grouped matrix products: tokens sorted by expert, no loop over them.

Sources: the sparsely-gated layer (Shazeer et al., 2017) in the form of Mixtral (Jiang et al.,
2024); sorting tokens so that each expert is one block of a product, MegaBlocks (Gale et al., 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from flowforge.engine.models.config import ExpertsConfig


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """All experts of a layer.

    router: [num_experts, hidden_size]. gate_up: [num_experts, 2 · intermediate_size, hidden_size],
    gate rows first. down: [num_experts, hidden_size, intermediate_size].
    """

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def mix_experts(
    hidden: torch.Tensor, weights: ExpertWeights, config: ExpertsConfig
) -> torch.Tensor:
    """Each token through its chosen experts, summed by the router's weights: [T, hidden_size].

    The gate is SiLU. Chosen and summed in one order per token, whatever else is in the batch.
    """
    chosen, shares = _route(hidden, weights.router, config)  # [T, num_chosen] each
    expert_of_row = chosen.flatten()
    order = expert_of_row.argsort(stable=True)
    counts = torch.bincount(expert_of_row, minlength=config.num_experts)
    ends = counts.cumsum(0).to(torch.int32)
    rows = hidden[order // config.num_chosen]  # [T · num_chosen, hidden_size], by expert
    gate, up = F.grouped_mm(rows, weights.gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    outputs = F.grouped_mm(F.silu(gate) * up, weights.down.transpose(1, 2), offs=ends)
    by_token = torch.empty_like(outputs)
    by_token[order] = outputs
    by_token = by_token.view(-1, config.num_chosen, hidden.shape[-1])
    return (by_token * shares.unsqueeze(-1)).sum(1).to(hidden.dtype)


def _route(
    hidden: torch.Tensor, router: torch.Tensor, config: ExpertsConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token and what their outputs count, float32, best first."""
    scores = F.linear(hidden, router).to(torch.float32).softmax(dim=-1)
    shares, chosen = scores.topk(config.num_chosen, dim=-1)
    if config.is_renormalized:
        shares = shares / shares.sum(-1, keepdim=True)
    return chosen, shares
