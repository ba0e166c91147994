"""Matrices in four and eight bits as the GPU kernels read them, and products without a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
import torch.nn.functional as F

from flowforge.engine.float8 import SCALE, from_float8, to_float8
from flowforge.engine.models.quantized import GROUP_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.engine.models.quantized import QuantizedKind

PackedKind: TypeAlias = Literal["int4", "int8", "float8"]

PACKED_KIND: dict[QuantizedKind, PackedKind] = {"q4_0": "int4", "q4_1": "int4", "q8_0": "int8"}
"""What groups of a GGUF file are packed to."""

_HALF = torch.float16


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [num_rows_out, num_columns_in] in few bits.

    int4: values uint8 [rows, columns / 2]; byte i of a group of 32 holds number i in its low half
    and number i + 16 in its high one. int8: int8 [rows, columns]. Both with scales and mins,
    float16 [rows, columns / 32]: scale · value + min. float8: e4m3 [rows, columns], scales float32
    [rows], no mins.
    """

    kind: PackedKind
    values: torch.Tensor
    scales: torch.Tensor
    mins: torch.Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows out and columns in."""
        rows, columns = self.values.shape
        return rows, columns * 2 if self.kind == "int4" else columns

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix itself; exact in float32."""
        if self.kind == "float8":
            return from_float8(self.values, self.scales, dtype)
        rows, columns = self.shape
        if self.kind == "int4":
            halves = self.values.view(rows, -1, GROUP_SIZE // 2)
            numbers = torch.cat((halves & 0xF, halves >> 4), dim=-1).float()
        else:
            numbers = self.values.view(rows, -1, GROUP_SIZE).float()
        assert self.mins is not None, "groups have their minimum"
        weights = numbers * self.scales.float()[..., None] + self.mins.float()[..., None]
        return weights.view(rows, columns).to(dtype)


def pack_groups(kind: QuantizedKind, stored: torch.Tensor) -> PackedMatrix:
    """Groups of a GGUF file, uint8 [rows, groups, bytes of a group], apart by what they hold.

    So that every load of a kernel is aligned; the numbers are the same.
    """
    rows = len(stored)

    def halves(start: int) -> torch.Tensor:
        return stored[..., start : start + 2].contiguous().view(_HALF).squeeze(-1)

    scales = halves(0)
    if kind == "q8_0":
        values = stored[..., 2:].contiguous().view(torch.int8).view(rows, -1)
        return PackedMatrix("int8", values, scales, torch.zeros_like(scales))
    mins = halves(2) if kind == "q4_1" else scales * -8
    values = stored[..., -GROUP_SIZE // 2 :].contiguous().view(rows, -1)
    return PackedMatrix("int4", values, scales, mins)


def pack_float8(weight: torch.Tensor) -> PackedMatrix:
    """Round a matrix [rows, columns] to float8, each row to its own scale."""
    values, scales = to_float8(weight)
    return PackedMatrix("float8", values, scales, None)


def stacked(matrices: Sequence[PackedMatrix]) -> PackedMatrix:
    """Matrices of one kind and as many columns on top of each other."""
    if len(matrices) == 1:
        return matrices[0]
    mins = [matrix.mins for matrix in matrices if matrix.mins is not None]
    return PackedMatrix(
        matrices[0].kind,
        torch.cat([matrix.values for matrix in matrices]),
        torch.cat([matrix.scales for matrix in matrices]),
        torch.cat(mins) if mins else None,
    )


def packed_bytes(kind: PackedKind, num_rows: int, num_columns: int) -> int:
    """What a packed matrix takes."""
    if kind == "float8":
        return num_rows * (num_columns + SCALE.itemsize)
    of_values = num_rows * num_columns // (2 if kind == "int4" else 1)
    return of_values + 2 * _HALF.itemsize * num_rows * (num_columns // GROUP_SIZE)


@dataclass(frozen=True, slots=True)
class UnpackedLinear:
    """The product with a packed matrix that is unpacked for it; satisfies `Linear`.

    For many rows this costs little beside the product, and no memory that stays.
    """

    matrix: PackedMatrix
    bias: torch.Tensor | None

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.matrix.values.device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return F.linear(x, self.matrix.unpacked(x.dtype), self.bias)
