"""Rotary position encoding: inverse frequencies per kind of scaling, and their application.

Sources: RoFormer (Su et al., 2021); linear scaling (Chen et al., 2023); dynamic NTK scaling (its
public description of 2023); YaRN (Peng et al., 2023); LongRoPE (Ding et al., 2024); Llama 3.1's
smoothed scaling as in Meta's reference. The half-split layout is Hugging Face's: rows i and
i + num_rows / 2 turn together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, assert_never

import torch

from flowforge.engine.models.rope_config import (
    DynamicScaling,
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    YarnScaling,
)

if TYPE_CHECKING:
    from flowforge.engine.models.rope_config import RopeConfig


def inverse_frequencies(rope: RopeConfig) -> torch.Tensor:
    """Angle per position of each pair of rows: float32 [num_rows / 2]."""
    plain = _plain(rope.theta, rope.num_rows)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case DynamicScaling(factor, stretch):
            growth = factor * stretch - (factor - 1)
            exponent = rope.num_rows / (rope.num_rows - 2)
            return _plain(rope.theta * growth**exponent, rope.num_rows)
        case FactorScaling(factors):
            return plain / torch.tensor(factors)
        case Llama3Scaling():
            return _llama3(plain, rope.scaling)
        case YarnScaling():
            return _yarn(plain, rope.theta, rope.scaling)
        case _:
            assert_never(rope.scaling)


class RotaryEmbedding:
    """The rotation of one kind of layer: cosines and sines once a step, applied in every layer."""

    def __init__(self, rope: RopeConfig, device: torch.device) -> None:
        frequencies = inverse_frequencies(rope).to(device)
        self._frequencies = torch.cat((frequencies, frequencies))  # [num_rows]
        # rotate(x) = x · cos + (−x₂, x₁) · sin = x · cos + roll(x, n/2) · (−sin, sin)
        half = torch.ones_like(frequencies) * rope.amplitude
        self._signs = torch.cat((-half, half))  # [num_rows]
        self._amplitude = rope.amplitude

    def angles(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines, [T, 1, num_rows] each in dtype; positions: int64 [T]."""
        turns = positions.to(torch.float32)[:, None, None] * self._frequencies
        return (turns.cos() * self._amplitude).to(dtype), (turns.sin() * self._signs).to(dtype)


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Turn the first rows of heads [T, num_heads, head_dim] by angles(); a new tensor."""
    num_rows = cosines.shape[-1]
    if num_rows < heads.shape[-1]:
        turning, still = heads.tensor_split((num_rows,), dim=-1)
        return torch.cat((rotate(turning, cosines, sines), still), dim=-1)
    return torch.addcmul(heads * cosines, heads.roll(num_rows // 2, -1), sines)


def _plain(theta: float, num_rows: int) -> torch.Tensor:
    exponents = torch.arange(0, num_rows, 2, dtype=torch.int64).to(torch.float32) / num_rows
    return 1.0 / (theta**exponents)


def _llama3(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Long waves are stretched, short ones kept, those between are blended."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_context_len * frequencies / (2 * math.pi)  # over the original context
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def _yarn(frequencies: torch.Tensor, theta: float, scaling: YarnScaling) -> torch.Tensor:
    """As Llama 3's, with the blend linear in the index of the pair and not in its turns."""
    num_pairs = len(frequencies)

    def pair_that_turns(num_turns: float) -> float:
        wave = scaling.original_context_len / (num_turns * 2 * math.pi)
        return num_pairs * math.log(wave) / math.log(theta)

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.is_truncated:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    width = last - first or 0.001  # one border: a step
    stretched = ((torch.arange(num_pairs) - first) / width).clamp(0.0, 1.0)
    return (1 - stretched) * frequencies + stretched * frequencies / scaling.factor
