"""Numbers in float8 e4m3, each row with a scale of its own: nothing has to be calibrated."""

from __future__ import annotations

import torch

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MOST = 448.0
"""The largest number of `FLOAT8`."""

SCALE = torch.float32
"""What scales are in."""


def to_float8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [..., size] in float8, and their scales [...]: the largest number of a row becomes 448.

    Zeros keep a scale of 1.
    """
    wide = rows.float()
    most = wide.abs().amax(dim=-1)
    scales = torch.where(most > 0, most / FLOAT8_MOST, torch.ones_like(most))
    return (wide / scales.unsqueeze(-1)).to(FLOAT8), scales


def from_float8(values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that `to_float8` left: [..., size], rounded to dtype."""
    return (values.float() * scales.unsqueeze(-1)).to(dtype)
