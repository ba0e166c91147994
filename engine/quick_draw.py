"""Draws that are decided by the likeliest tokens of a row: nearly all, and much sooner.

To order and weigh a whole vocabulary takes longer than a layer. A survey finds what weighs much,
and what all weigh together but for a rounding error that is bounded; where a draw comes to the same
within that error, it is what ordering all would have found, to the bit. Else it is left open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from flowforge.engine.native.survey_library import SurveyLibrary
    from flowforge.engine.sampling import SamplingParams

# Temperatures below the best score; beyond the second hardly a draw ends.
_DEPTHS = (4.0, 12.0)
_MOST_LIKELY = 4096
# From so many on, digits are sorted sooner than numbers.
_MANY = 1024
# Of a sum of weights in single precision, as a share: differences of scores are rounded, and up to
# 20 of them weigh; the rest weigh less than what this allows for.
_TOTAL_ERROR = 2e-5


@dataclass(frozen=True, slots=True)
class Survey:
    """ids: of the tokens that are likely, rising. total: what all weigh, the best one being 1."""

    ids: npt.NDArray[np.int32]
    total: float


def weights_of(scores: npt.NDArray[np.float32], temperature: float) -> npt.NDArray[np.float64]:
    """Relative to the first of them, which is the best. scores: float32 [num_scores]."""
    return np.exp((scores.astype(np.float64) - float(scores[0])) / temperature)


def order_of(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """Indices into scores, the best first, equal ones in order of index. scores: without NaN."""
    if len(scores) < _MANY:
        return np.argsort(-scores, kind="stable")
    # As integers of that order, by digits of 16 bits, which numpy sorts by counting.
    bits = (np.float32(0) - scores).view(np.int32)
    keys = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    return order[np.argsort((keys >> 16).astype(np.int16)[order], kind="stable")]


def draw_quickly(
    scores: npt.NDArray[np.float32],
    params: SamplingParams,
    uniform: float,
    mask: npt.NDArray[np.uint32] | None = None,
    library: SurveyLibrary | None = None,
) -> int | None:
    """The id that a draw among all would come to; None where that needs all, or cannot be.

    scores: float32 [vocab_size]. params: a temperature above 0. uniform: in [0, 1). mask: as
    `sample` has it. library: the compiled survey, if it is there.
    """
    # To find the few best of a row takes no longer than to look a second time.
    for depth in _DEPTHS[:1] if params.top_k > 0 else _DEPTHS:
        found = survey(scores, params.temperature, depth * params.temperature, mask, library)
        if found is None:
            return None
        likely = scores[found.ids]
        ranks = order_of(likely)
        at = _place(weights_of(likely[ranks], params.temperature), found.total, params, uniform)
        if at is not None:
            return int(found.ids[ranks[at]])
    return None


def best_allowed(
    scores: npt.NDArray[np.float32],
    mask: npt.NDArray[np.uint32],
    library: SurveyLibrary | None = None,
) -> int | None:
    """The lowest id of those with the best score; None where nothing is allowed, or one is NaN."""
    found = survey(scores, 0.0, 0.0, mask, library)
    return None if found is None else int(found.ids[0])


def survey(
    scores: npt.NDArray[np.float32],
    temperature: float,
    depth: float,
    mask: npt.NDArray[np.uint32] | None,
    library: SurveyLibrary | None,
) -> Survey | None:
    """What is within `depth` of the best score; None for too much, for NaN, and for no best score.

    temperature: 0 for no weights.
    """
    slope = 1 / temperature if temperature > 0 else 0.0
    if library is not None and scores.flags.c_contiguous and scores.dtype == np.float32:
        found = library.survey(scores, mask, slope, depth, _MOST_LIKELY)
        return None if found is None else Survey(*found)
    if mask is not None:
        bits = np.unpackbits(mask.view(np.uint8), count=len(scores), bitorder="little")
        scores = np.where(bits, scores, np.float32(-np.inf))
    best = scores.max()
    if not best > -np.inf:
        return None
    ids = np.flatnonzero(scores >= best - np.float32(depth)).astype(np.int32)
    if len(ids) > _MOST_LIKELY:
        return None
    weights = np.exp((scores - best) * np.float32(slope)) if slope else scores[:0]
    return Survey(ids, float(weights.sum(dtype=np.float64)))


def _place(
    weights: npt.NDArray[np.float64], total: float, params: SamplingParams, uniform: float
) -> int | None:
    """Which of the likeliest is drawn; None where that is not sure.

    weights: of the likeliest, falling. total: of all weights, up to `_TOTAL_ERROR`.
    """
    is_whole = False
    if params.top_k > 0:
        if len(weights) < params.top_k:
            return None
        weights, is_whole = weights[: params.top_k], True
    if params.min_p > 0:
        keep = int(np.count_nonzero(weights >= params.min_p))
        is_whole = is_whole or keep < len(weights)
        weights = weights[:keep]
    cumulative = weights.cumsum()
    bounds = _bounds(cumulative, total, is_whole=is_whole)
    if params.top_p < 1:
        least, most = (int(np.searchsorted(cumulative, params.top_p * end)) + 1 for end in bounds)
        if least != most or most > len(cumulative):
            return None
        cumulative, is_whole = cumulative[:most], True
        bounds = _bounds(cumulative, total, is_whole=True)
    least, most = (int(np.searchsorted(cumulative, uniform * end, "right")) for end in bounds)
    if is_whole:
        return min(least, len(cumulative) - 1)
    return least if least == most < len(cumulative) else None


def _bounds(
    cumulative: npt.NDArray[np.float64], total: float, *, is_whole: bool
) -> tuple[float, float]:
    """Between which the sum of all that may be drawn is."""
    if is_whole:
        return float(cumulative[-1]), float(cumulative[-1])
    return total * (1 - _TOTAL_ERROR), total * (1 + _TOTAL_ERROR)
