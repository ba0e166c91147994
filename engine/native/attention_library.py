"""The compiled attention kernel: how it is called."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from flowforge.engine.native.compilation import is_openmp_shared, void_function

if TYPE_CHECKING:
    from pathlib import Path

TILE = 32
"""Positions of one tile, as in attention.c."""
HEAD_DIM_MULTIPLE = 8

_POINTERS = ("keys", "values", "k", "v", "q", "out", "sums")
_TABLES = ("slots", "spans", "ranges", "runs", "readers")
_NUMBERS = (
    *("q_stride", "k_stride", "v_stride"),
    *("num_tokens", "num_heads", "num_kv_heads", "head_dim", "num_slots"),
    *("num_spans", "num_runs", "num_parts", "window", "num_threads"),
)


class LayerCall(ctypes.Structure):
    """`struct attention` of kernels.h, where its fields are described."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_POINTERS, *_TABLES)),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


class AttentionLibrary:
    """The compiled kernel; safe to use from several threads at once."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a file that cannot be loaded here."""
        self.path = path
        self._attention = void_function(path, "flowforge_attention", (ctypes.c_void_p,))
        self._is_threaded = is_openmp_shared()

    @property
    def num_threads(self) -> int:
        """Threads that a call may use: torch's, if both have them from one OpenMP."""
        return torch.get_num_threads() if self._is_threaded else 1

    def attend(self, call: LayerCall) -> None:
        """Store K and V and attend; the caller owns all that the call points to."""
        self._attention(ctypes.addressof(call))
