"""Draws among the likeliest tokens of a row come to what ordering all of them comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowforge.engine import sampling
from flowforge.engine.native.survey_library import find_survey_library
from flowforge.engine.quick_draw import draw_quickly, order_of, survey
from flowforge.engine.random_draw import uniform_draw
from flowforge.engine.sampling import SamplingParams, candidates, sample
from flowforge.errors import EngineError

if TYPE_CHECKING:
    import numpy.typing as npt

    from flowforge.engine.native.survey_library import SurveyLibrary

LIBRARIES = [
    pytest.param(None, id="numpy"),
    pytest.param(
        find_survey_library(),
        id="compiled",
        marks=pytest.mark.skipif(find_survey_library() is None, reason="there is no C compiler"),
    ),
]
SIZES = st.sampled_from([1, 7, 31, 32, 33, 100, 1000, 5000])


@st.composite
def rows(draw: st.DrawFn) -> npt.NDArray[np.float32]:
    """Scores as models give them, and as none does: flat, steep, equal, minus infinity."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = generator.normal(0, draw(st.sampled_from([0.0, 0.1, 1.0, 3.0, 30.0])), draw(SIZES))
    if draw(st.booleans()):
        scores = scores.round(1)
    if draw(st.booleans()):
        scores[:: draw(st.integers(2, 9))] = -np.inf
    if draw(st.booleans()):
        scores[generator.integers(0, len(scores), 5)] += 10
    return scores.astype(np.float32)


@st.composite
def draws(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([2e-4, 0.3, 0.7, 1.0, 2.0, 50.0])),
        top_k=draw(st.sampled_from([0, 0, 2, 40, 900])),
        top_p=draw(st.sampled_from([1.0, 1e-6, 0.5, 0.9, 0.999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-9, 0.05, 1.0])),
        seed=draw(st.integers(0, 1000)),
    )


def masks(size: int, seed: int) -> npt.NDArray[np.uint32]:
    """About half of all, or few; the bits behind the last score are set as well."""
    generator = np.random.default_rng(seed)
    mask = generator.integers(0, 2**32, -(-size // 32), dtype=np.uint32)
    if seed % 2:
        mask[generator.random(len(mask)) < 0.9] = 0
    return mask


def chosen_by_order(scores: npt.NDArray[np.float32], params: SamplingParams, uniform: float) -> int:
    order, weights = candidates(scores, params)
    cumulative = weights.cumsum()
    at = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return int(order[min(at, len(order) - 1)])


@pytest.mark.parametrize("library", LIBRARIES)
@given(row=rows(), params=draws(), uniform=st.floats(0, 1, exclude_max=True))
def test_a_quick_draw_is_the_draw_among_all(
    library: SurveyLibrary | None,
    row: npt.NDArray[np.float32],
    params: SamplingParams,
    uniform: float,
) -> None:
    quick = draw_quickly(row, params, uniform, library=library)

    if quick is not None:
        assert quick == chosen_by_order(row, params, uniform)


@pytest.mark.parametrize("library", LIBRARIES)
@given(row=rows(), params=draws(), seed=st.integers(0, 100))
def test_a_mask_takes_tokens_out_of_the_row(
    library: SurveyLibrary | None, row: npt.NDArray[np.float32], params: SamplingParams, seed: int
) -> None:
    mask = masks(len(row), seed)
    bits = np.unpackbits(mask.view(np.uint8), count=len(row), bitorder="little")
    allowed = np.where(bits, row, np.float32(-np.inf))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "find_survey_library", lambda: library)
        found = [_sampled(row, one, mask) for one in (params, SamplingParams())]
        patch.setattr(sampling, "_choose_quickly", _nothing)
        expected = [_sampled(row, one, mask) for one in (params, SamplingParams())]

    assert found == expected
    if allowed.max() > -np.inf:
        assert found[1] == int(allowed.argmax())


def _nothing(*_: object) -> None:
    """Leaves every draw open."""


def _sampled(
    row: npt.NDArray[np.float32], params: SamplingParams, mask: npt.NDArray[np.uint32]
) -> int | str:
    try:
        return sample(row, params, position=5, mask=mask)
    except EngineError as error:
        return f"{error.code} {error}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_nearly_all_draws_of_a_likely_row_are_quick(library: SurveyLibrary | None) -> None:
    generator = np.random.default_rng(0)
    row = generator.normal(0, 2, 49_152).astype(np.float32)
    row[generator.integers(0, len(row), 30)] += np.linspace(8, 14, 30, dtype=np.float32)
    for params in (
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.0, min_p=0.05),
    ):
        uniforms = [uniform_draw(0, 0, position) for position in range(200)]
        found = [draw_quickly(row, params, uniform, library=library) for uniform in uniforms]

        assert found.count(None) <= 2
        for quick, uniform in zip(found, uniforms, strict=True):
            assert quick is None or quick == chosen_by_order(row, params, uniform)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_row_without_a_best_token_is_left_open(library: SurveyLibrary | None, bad: float) -> None:
    row = np.full(100, bad, dtype=np.float32)

    assert survey(row, 1.0, 4.0, None, library) is None


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_nan_that_is_not_allowed_counts_nowhere(library: SurveyLibrary | None) -> None:
    row = np.zeros(64, dtype=np.float32)
    row[3], row[40] = np.nan, 1
    mask = np.full(2, 2**32 - 1, dtype=np.uint32)
    mask[0] &= np.uint32(~(1 << 3) & 0xFFFFFFFF)

    assert sample(row, SamplingParams(), position=0, mask=mask) == 40
    assert survey(row, 1.0, 4.0, None, library) is None
    found = survey(row, 1.0, 0.0, mask, library)
    assert found is not None
    assert found.ids.tolist() == [40]
    assert found.total == pytest.approx(1 + 62 * np.exp(-1))


@given(row=rows())
def test_many_scores_are_ordered_as_few_are(row: npt.NDArray[np.float32]) -> None:
    expected = np.argsort(-row, kind="stable")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flowforge.engine.quick_draw._MANY", 0)
        assert order_of(row).tolist() == expected.tolist()
