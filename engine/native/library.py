"""The engine's own kernels: C in this folder, compiled once by the machine's compiler, and kept.

Nothing needs them: without a compiler, or where the compiled code does not compute what torch
computes, there is no library, and torch's operators do the work.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import torch

from flowforge.engine.models.quantized import GROUP_BYTES, GROUP_SIZE
from flowforge.engine.native.compilation import is_openmp_shared, load_library, void_function

if TYPE_CHECKING:
    from pathlib import Path

_logger = logging.getLogger(__name__)

WeightKind = Literal["float32", "bfloat16", "q4_0", "q4_1", "q8_0"]
"""How weights are stored; q: in groups of 32 integers, as the GGUF types of those names."""

WEIGHT_KINDS: tuple[WeightKind, ...] = ("float32", "bfloat16", "q4_0", "q4_1", "q8_0")
PANEL = 16
"""Outputs that are computed side by side, as in kernels.h."""


class MatrixCall(ctypes.Structure):
    """`struct matrix` of kernels.h, where its fields are described."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("kind", "num_outputs", "depth", "rounds")),
    )


class RoundedCall(ctypes.Structure):
    """`struct rounded` of kernels.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("integers", "scales"))


class RoundedRows:
    """Room for rows in 8 bits, so many at most, and where it is."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        """num_columns: a multiple of `GROUP_SIZE`."""
        self._integers = torch.empty(num_rows * num_columns, dtype=torch.int8)
        self._scales = torch.empty(num_rows * num_columns // GROUP_SIZE * 2)
        self.call = RoundedCall(self._integers.data_ptr(), self._scales.data_ptr())


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix as the kernels read it. kept: what `call` points to."""

    call: MatrixCall
    num_rows_out: int
    num_columns_in: int
    kept: tuple[torch.Tensor, ...]


class LinearLibrary:
    """The compiled kernels; safe to use from several threads at once."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a file that cannot be loaded here."""
        self.path = path
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._linear = void_function(
            path, "flowforge_linear", (pointer, pointer, pointer, pointer, number, ctypes.c_int)
        )
        self._pack = void_function(
            path, "flowforge_pack", (ctypes.c_int, pointer, pointer, number, number, ctypes.c_int)
        )
        self._is_threaded = is_openmp_shared()

    @property
    def num_threads(self) -> int:
        """Threads that a call may use: torch's, if both have them from one OpenMP."""
        return torch.get_num_threads() if self._is_threaded else 1

    def pack(
        self,
        kind: WeightKind,
        weight: torch.Tensor,
        num_rows_out: int,
        bias: torch.Tensor | None = None,
        *,
        rounds: bool = False,
    ) -> PackedMatrix:
        """Bring a matrix into the form that the kernels read.

        weight: contiguous, as stored; four and eight bits are copied, others kept as they are. Its
        columns are a multiple of `GROUP_SIZE`. bias: float32 [num_rows_out]. rounds: what it is
        multiplied with is rounded to 8 bits, a scale for each `GROUP_SIZE` numbers of a row, and
        multiplied in integers; for weights of four and eight bits.
        """
        assert not rounds or kind in GROUP_BYTES, "only packed weights are multiplied in integers"
        num_columns_in = weight[0].numel()
        if kind in GROUP_BYTES:
            num_columns_in = num_columns_in // GROUP_BYTES[kind] * GROUP_SIZE
            weight = self._packed(kind, weight, num_rows_out, num_columns_in)
        bias = None if bias is None else bias.contiguous()
        call = MatrixCall(
            weight=weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            kind=WEIGHT_KINDS.index(kind),
            num_outputs=num_rows_out,
            depth=num_columns_in,
            rounds=rounds,
        )
        kept = (weight,) if bias is None else (weight, bias)
        return PackedMatrix(call, num_rows_out, num_columns_in, kept)

    def linear(self, matrix: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
        """Multiply, in float32, with a transposed matrix, and add its bias: [T, num_rows_out].

        x: float32 [T, columns in], contiguous. Each row of the result has the same bits whatever
        other rows there are and however many threads.
        """
        num_rows = x.shape[0]
        out = torch.empty((num_rows, matrix.num_rows_out), dtype=torch.float32)
        rounded = RoundedRows(num_rows, matrix.num_columns_in) if matrix.call.rounds else None
        self._linear(
            ctypes.addressof(matrix.call),
            x.data_ptr(),
            None if rounded is None else ctypes.addressof(rounded.call),
            out.data_ptr(),
            num_rows,
            self.num_threads,
        )
        return out

    def _packed(
        self, kind: WeightKind, weight: torch.Tensor, num_rows_out: int, num_columns_in: int
    ) -> torch.Tensor:
        num_panels = -(-num_rows_out // PANEL)
        size = num_panels * PANEL * (weight.numel() // num_rows_out)
        packed = torch.empty(size, dtype=torch.uint8)
        self._pack(
            WEIGHT_KINDS.index(kind),
            weight.data_ptr(),
            packed.data_ptr(),
            num_rows_out,
            num_columns_in,
            self.num_threads,
        )
        return packed


@cache
def find_library() -> LinearLibrary | None:
    """The kernels, compiled now where they are not kept yet; None where that cannot be.

    Why not is logged once. The compiler is $CC, else cc.
    """
    library = load_library(LinearLibrary)
    if library is not None and not _computes_right(library):
        _logger.warning("the compiled kernels %s compute wrong results: not used", library.path)
        return None
    return library


def _computes_right(library: LinearLibrary) -> bool:
    """On one small product; what each kind stands for is the tests' to check."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((5, 64), generator=generator)
    weight = torch.randn((9, 64), generator=generator)
    with torch.inference_mode():
        matrix = library.pack("float32", weight, 9)
        found, alone = library.linear(matrix, x), library.linear(matrix, x[:1])
    is_close = torch.allclose(found, x @ weight.T, rtol=1e-4, atol=1e-4)
    return is_close and torch.equal(found[:1], alone)
