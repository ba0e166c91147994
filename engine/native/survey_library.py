"""The compiled survey of a row of scores: how it is called."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from flowforge.engine.native.compilation import load_library, void_function

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt


class SurveyCall(ctypes.Structure):
    """`struct survey` of kernels.h, where its fields are described."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scores", "allowed", "likely")),
        ("total", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("num_scores", "most_likely")),
        *((name, ctypes.c_int64) for name in ("num_likely", "has_best")),
        *((name, ctypes.c_float) for name in ("best", "slope", "depth")),
    )


class SurveyLibrary:
    """The compiled function; safe to use from several threads at once."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a file that cannot be loaded here."""
        self.path = path
        self._survey = void_function(path, "flowforge_survey", (ctypes.c_void_p,))

    def survey(
        self,
        scores: npt.NDArray[np.float32],
        mask: npt.NDArray[np.uint32] | None,
        slope: float,
        depth: float,
        most: int,
    ) -> tuple[npt.NDArray[np.int32], float] | None:
        """Ids of all scores within `depth` of the best, rising, and the sum of all weights.

        scores: float32 [num_scores], contiguous. mask: uint32 [ceil(num_scores / 32)], contiguous,
        bit set = allowed. slope: a weight is exp(slope * (score - best)). None where there are more
        than `most`, where an allowed score is NaN, and where none is above minus infinity.
        """
        likely = np.empty(most, dtype=np.int32)
        call = SurveyCall(
            scores=scores.ctypes.data,
            allowed=None if mask is None else mask.ctypes.data,
            likely=likely.ctypes.data,
            num_scores=len(scores),
            most_likely=most,
            slope=slope,
            depth=depth,
        )
        self._survey(ctypes.addressof(call))
        if not call.has_best or call.num_likely > most:
            return None
        return likely[: call.num_likely], call.total


@cache
def find_survey_library() -> SurveyLibrary | None:
    """The compiled function; None where it cannot be compiled, see `find_library`."""
    return load_library(SurveyLibrary)
