"""The second weight file of a converted GGUF model: matrices as the GGUF file had them.

uint8 tensors [rows out, columns in / 32, bytes of a group], named as in the first file, which has
the same numbers in float32. A group holds 32 integers of one row behind their scale. Imports no
torch: whoever only converts needs none.
"""

from __future__ import annotations

from typing import Literal

QuantizedKind = Literal["q4_0", "q4_1", "q8_0"]

CONVERSION = 2
"""Counts up when `convert_gguf` writes something else: stored models are then converted again."""

QUANTIZED_FILE = "quantized.safetensors"
GROUP_SIZE = 32
"""Integers of a group."""
GROUP_BYTES: dict[QuantizedKind, int] = {"q4_0": 18, "q4_1": 20, "q8_0": 34}
KIND_OF_BYTES: dict[int, QuantizedKind] = {size: kind for kind, size in GROUP_BYTES.items()}
KIND_OF_GGUF_TYPE: dict[str, QuantizedKind] = {kind.upper(): kind for kind in GROUP_BYTES}
