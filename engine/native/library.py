"""The engine's own kernels: C in this folder, compiled once by the machine's compiler, and kept.

Nothing needs them: without a compiler, or where the compiled code does not compute what torch
computes, there is no library, and torch's operators do the work.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from typing import TYPE_CHECKING, Literal

import torch

from flowforge.engine.native.compilation import is_openmp_shared, load_library, void_function

if TYPE_CHECKING:
    from pathlib import Path

_logger = logging.getLogger(__name__)

WeightKind = Literal["float32", "bfloat16", "q4_0", "q4_1", "q8_0"]
"""How weights are stored; q: in groups of 32 integers, as the GGUF types of those names."""

WEIGHT_KINDS: tuple[WeightKind, ...] = ("float32", "bfloat16", "q4_0", "q4_1", "q8_0")
GROUP_SIZE = 32
MOST_COLUMNS_IN = 32_768


class LinearLibrary:
    """The compiled kernels; safe to use from several threads at once."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a file that cannot be loaded here."""
        self.path = path
        types = (ctypes.c_int, *(ctypes.c_void_p,) * 3, *(ctypes.c_int64,) * 3, ctypes.c_int)
        self._linear = void_function(path, "flowforge_linear", types)
        self._is_threaded = is_openmp_shared()

    def linear(
        self, kind: WeightKind, weight: torch.Tensor, x: torch.Tensor, num_rows_out: int
    ) -> torch.Tensor:
        """Multiply, in float32, with a transposed matrix: [T, num_rows_out].

        x: float32 [T, columns in], contiguous, columns a multiple of `GROUP_SIZE` and at most
        `MOST_COLUMNS_IN`. weight: contiguous, as stored. Each row of the result has the same bits
        whatever other rows there are and however many threads.
        """
        num_rows, depth = x.shape
        out = torch.empty((num_rows, num_rows_out), dtype=torch.float32)
        self._linear(
            WEIGHT_KINDS.index(kind),
            weight.data_ptr(),
            x.data_ptr(),
            out.data_ptr(),
            num_rows,
            num_rows_out,
            depth,
            torch.get_num_threads() if self._is_threaded else 1,
        )
        return out


@cache
def find_library() -> LinearLibrary | None:
    """The kernels, compiled now where they are not kept yet; None where that cannot be.

    Why not is logged once. The compiler is $CC, else cc.
    """
    library = load_library("linear", LinearLibrary)
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
        found = library.linear("float32", weight, x, 9)
        alone = library.linear("float32", weight, x[:1], 9)
    is_close = torch.allclose(found, x @ weight.T, rtol=1e-4, atol=1e-4)
    return is_close and torch.equal(found[:1], alone)
