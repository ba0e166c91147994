"""Rotary position encoding: inverse frequencies per kind of scaling, and their application.

Sources: RoFormer (Su et al., 2021); linear scaling (Chen et al., 2023); dynamic NTK scaling (its
public description of 2023); Llama 3.1's smoothed scaling as in Meta's reference. The half-split
layout is Hugging Face's: rows i and i + head_dim / 2 turn together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, assert_never

import torch

if TYPE_CHECKING:
    from flowforge.engine.models.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int, context_len: int) -> torch.Tensor:
    """Angle per position of each pair of rows: float32 [head_dim / 2].

    context_len: tokens of the longest sequence; only kind "dynamic" looks at it.
    """
    match rope.kind:
        case "default":
            return _plain(rope.theta, head_dim)
        case "linear":
            return _plain(rope.theta, head_dim) / rope.factor
        case "dynamic":
            return _dynamic(rope, head_dim, context_len)
        case "llama3":
            return _llama3(rope, head_dim)
        case _:
            assert_never(rope.kind)


class RotaryEmbedding:
    """The rotation of one model: cosines and sines per step, applied in every layer.

    With kind "dynamic" the frequencies are those up to the original context length, which the
    model's max_context_len keeps to: longer ones would turn the K rows already in pages.
    """

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        frequencies = inverse_frequencies(rope, head_dim, rope.original_context_len).to(device)
        self._frequencies = torch.cat((frequencies, frequencies))  # [head_dim]
        # rotate(x) = x · cos + (−x₂, x₁) · sin = x · cos + roll(x, d/2) · (−sin, sin)
        half = torch.ones_like(frequencies)
        self._signs = torch.cat((-half, half))  # [head_dim]
        self._half_dim = head_dim // 2

    def angles(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines, [T, 1, head_dim] each in dtype; positions: int64 [T]."""
        turns = positions.to(torch.float32)[:, None, None] * self._frequencies
        return turns.cos().to(dtype), (turns.sin() * self._signs).to(dtype)

    def rotate(
        self, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
    ) -> torch.Tensor:
        """Turn heads [T, num_heads, head_dim] by angles() of their positions; a new tensor."""
        return torch.addcmul(heads * cosines, heads.roll(self._half_dim, -1), sines)


def _plain(theta: float, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    return 1.0 / (theta**exponents)


def _dynamic(rope: RopeConfig, head_dim: int, context_len: int) -> torch.Tensor:
    stretch = max(context_len, rope.original_context_len) / rope.original_context_len
    scale = rope.factor * stretch - (rope.factor - 1)
    return _plain(rope.theta * scale ** (head_dim / (head_dim - 2)), head_dim)


def _llama3(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Long waves are stretched, short ones kept, those between are blended."""
    frequencies = _plain(rope.theta, head_dim)
    turns = rope.original_context_len * frequencies / (2 * math.pi)  # over the original context
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = share.clamp(0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / rope.factor
