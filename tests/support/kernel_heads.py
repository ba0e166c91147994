"""Shapes and dtypes of heads that attention kernels are tried on, and layers."""

from __future__ import annotations

import itertools

import pytest
import torch

from flowforge.engine.attention.interface import LayerAttention
from flowforge.engine.kernels.dialect import IS_INTERPRETED
from flowforge.engine.kernels.trial_steps import Heads

PAGE = 16
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 80, 96, 128, 256)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8)
LAYERS = (
    LayerAttention(0.1),
    LayerAttention(0.1, window=PAGE + 1),
    LayerAttention(0.1, softcap=2.0),
    LayerAttention(0.1, window=PAGE, softcap=2.0),
)
# Rows that are there already end before, at and behind a page's border; and none.
OLDER = (0, 1, PAGE - 1, PAGE, PAGE + 1)

on_the_cpu = pytest.mark.skipif(
    not IS_INTERPRETED, reason="kernels are compiled for the GPU here: tests/gpu runs them"
)


def covering_heads(num_kv_heads: int = 1) -> list[Heads]:
    """Every dtype with every head size, and every ratio of query heads with some of them."""
    pairs = itertools.product(HEAD_DIMS, DTYPES)
    return [
        Heads(num_kv_heads, group, head_dim, dtype)
        for (head_dim, dtype), group in zip(pairs, itertools.cycle(GROUPS), strict=False)
    ]


def all_heads(num_kv_heads: int) -> list[Heads]:
    """The whole product."""
    return [
        Heads(num_kv_heads, group, head_dim, dtype)
        for head_dim, dtype, group in itertools.product(HEAD_DIMS, DTYPES, GROUPS)
    ]


def named(heads: Heads) -> str:
    """For a test's name."""
    return f"{heads.dtype}-{heads.group}x{heads.head_dim}".removeprefix("torch.")
