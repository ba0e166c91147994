"""The compiled layers of a decoder: how they are called."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from flowforge.engine.native.compilation import void_function
from flowforge.engine.native.library import MatrixCall, RoundedCall

if TYPE_CHECKING:
    from pathlib import Path

ACTIVATIONS = ("silu", "gelu_tanh")
"""As `enum activation` of layers.c numbers them."""

NORMS = ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm")

ROUNDED = ("rounded_normed", "rounded_attended", "rounded_gated")


class CompiledLayer(ctypes.Structure):
    """`struct layer` of layers.c, where its fields are described."""

    _fields_ = (
        *((name, MatrixCall) for name in ("qkv", "output", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in (*NORMS, "q_norm", "k_norm")),
        *((name, ctypes.c_int64) for name in ("rope", "window")),
    )


class Turns(ctypes.Structure):
    """`struct rope` of layers.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cosines", "sines")),
        ("num_rows", ctypes.c_int64),
    )


class LayersCall(ctypes.Structure):
    """`struct step` of layers.c, with its `struct buffers` in place."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("layers", "ropes", "attention", "rows")),
        *((name, ctypes.c_void_p) for name in ("hidden", "out", "final_norm")),
        *((name, ctypes.c_void_p) for name in ("normed", "qkv", "projected", "gate_up")),
        *((name, RoundedCall) for name in ROUNDED),
        ("counters", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_layers", "hidden_size")),
        *((name, ctypes.c_int64) for name in ("mlp_size", "activation")),
        ("epsilon", ctypes.c_float),
    )


class LayersLibrary:
    """The compiled layers; safe to use from several threads at once."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a file that cannot be loaded here."""
        self._layers = void_function(path, "flowforge_layers", (ctypes.c_void_p,))

    def run(self, call: LayersCall) -> None:
        """Compute all layers; the caller owns all that the call points to."""
        self._layers(ctypes.addressof(call))
