"""Sampling as a pure function: cases of the bank, borders, and agreement with plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowforge.engine.sampling import SamplingParams, adjust, logprobs_of, sample
from flowforge.errors import EngineError

LOGITS = np.array([1.0, 2.0, -3.0, 0.5, 4.0, 1.5], dtype=np.float32)
SCORES = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40)


def draws(params: SamplingParams, num_draws: int = 4000) -> npt.NDArray[np.float64]:
    """Shares of the ids of LOGITS over as many positions."""
    ids = [sample(LOGITS, params, position=position) for position in range(num_draws)]
    return np.bincount(ids, minlength=len(LOGITS)) / num_draws


def softmax(logits: npt.NDArray[np.float32], temperature: float = 1.0) -> npt.NDArray[np.float64]:
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


def bits(*allowed: int) -> npt.NDArray[np.uint32]:
    return np.array([sum(1 << token_id for token_id in allowed)], dtype=np.uint32)


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-12, 1e-5])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    """TK-039: logits / 1e-40 would be infinite."""
    params = SamplingParams(temperature=temperature)

    assert {4} == {sample(LOGITS, params, position=position) for position in range(50)}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    shares = draws(SamplingParams(temperature=temperature, seed=1))

    # Four standard deviations of a share over 4,000 draws are at most 0.032.
    assert np.abs(shares - softmax(LOGITS, temperature)).max() < 0.032


def test_top_k_keeps_the_k_best() -> None:
    shares = draws(SamplingParams(temperature=2.0, top_k=3))

    assert {1, 4, 5} == set(np.flatnonzero(shares))


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    best, second = softmax(LOGITS)[[4, 1]]

    just_the_best = draws(SamplingParams(temperature=1.0, top_p=float(best) - 1e-6))
    one_more = draws(SamplingParams(temperature=1.0, top_p=float(best) + 1e-6))

    assert {4} == set(np.flatnonzero(just_the_best))
    assert {1, 4} == set(np.flatnonzero(one_more))
    assert abs(one_more[1] - second / (best + second)) < 0.032


def test_min_p_drops_what_is_far_below_the_best() -> None:
    shares = draws(SamplingParams(temperature=1.0, min_p=float(np.exp(2.0 - 4.0)) - 1e-6))

    assert {1, 4} == set(np.flatnonzero(shares))


def test_equal_seeds_draw_equally_and_other_seeds_do_not() -> None:
    def ids(seed: int) -> list[int]:
        params = SamplingParams(temperature=1.0, seed=seed)
        return [sample(LOGITS, params, position=position) for position in range(40)]

    assert ids(7) == ids(7)
    assert ids(7) != ids(8)
    assert ids(7) != ids(7 + 2**64), "the upper half of a seed counts"


def test_repetition_penalty_has_the_right_sign_and_counts_an_id_once() -> None:
    """TK-044."""
    logits = np.array([1.0, 2.0, -3.0, 2.0], dtype=np.float32)
    params = SamplingParams(repetition_penalty=1.2)

    adjusted = adjust(logits, params, prompt=[0, 2], output=[2])

    np.testing.assert_allclose(adjusted, [0.8333333, 2.0, -3.6, 2.0], rtol=1e-6)
    np.testing.assert_array_equal(logits, [1.0, 2.0, -3.0, 2.0], "the row itself is not changed")


def test_presence_and_frequency_count_the_output_only() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)

    adjusted = adjust(LOGITS, params, prompt=[0, 0, 4], output=[1, 1, 1, 5])

    expected = LOGITS - np.array([0, 0.5 + 0.75, 0, 0, 0, 0.5 + 0.25], dtype=np.float32)
    np.testing.assert_allclose(adjusted, expected, rtol=1e-6)


def test_a_bias_of_minus_100_bans_whatever_the_logit() -> None:
    """TK-051."""
    logits = np.array([500.0, 1.0], dtype=np.float32)
    params = SamplingParams(logit_bias={0: -100})

    assert 1 == sample(adjust(logits, params, prompt=[], output=[]), params, position=0)


@pytest.mark.parametrize("bias", [{-1: 1.0}, {5: 1000.0}])
def test_a_bias_out_of_range_is_refused(bias: dict[int, float]) -> None:
    """TK-052."""
    with pytest.raises(EngineError, match="logit_bias must be"):
        SamplingParams(logit_bias=bias)


def test_a_bias_on_an_id_past_the_vocabulary_is_refused() -> None:
    """TK-052: no index error, no wrap-around."""
    with pytest.raises(EngineError, match="logit_bias must be keyed by ids below 6, got 999999"):
        adjust(LOGITS, SamplingParams(logit_bias={999999: 1.0}), prompt=[], output=[])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature must be at least 0, got -1"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"temperature": float("inf")}, "temperature must be"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, got 0"),
        ({"top_k": -1}, "top_k must be"),
        ({"min_p": 2}, "min_p must be"),
        ({"repetition_penalty": 0}, "repetition_penalty must be"),
        ({"presence_penalty": 3}, "presence_penalty must be"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens must be at most max_tokens"),
        ({"seed": -1}, "seed must be"),
        ({"num_logprobs": 101}, "num_logprobs must be 0 to 100, got 101"),
    ],
)
def test_values_out_of_range_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        SamplingParams(**settings)

    assert caught.value.code == "EN210"


def test_only_what_the_mask_allows_is_drawn() -> None:
    params = SamplingParams(temperature=5.0)

    drawn = {sample(LOGITS, params, position=p, mask=bits(0, 2, 3)) for p in range(500)}

    assert {0, 2, 3} == drawn


def test_no_bias_or_penalty_revives_a_masked_token() -> None:
    params = SamplingParams(logit_bias={4: 100}, presence_penalty=-2, temperature=1.0)
    scores = adjust(LOGITS, params, prompt=[4], output=[4, 4])

    drawn = {sample(scores, params, position=p, mask=bits(0, 1)) for p in range(200)}

    assert drawn <= {0, 1}


def test_a_mask_that_allows_nothing_is_a_dead_end_and_no_sample() -> None:
    with pytest.raises(EngineError, match="a dead end"):
        sample(LOGITS, SamplingParams(), position=0, mask=bits())


def test_a_bias_that_bans_all_that_the_mask_allows_is_a_dead_end() -> None:
    params = SamplingParams(logit_bias={0: -100, 1: -100})
    scores = adjust(LOGITS, params, prompt=[], output=[])

    with pytest.raises(EngineError, match="bans all"):
        sample(scores, params, position=0, mask=bits(0, 1))


def test_nan_logits_are_an_error_and_no_token() -> None:
    logits = LOGITS.copy()
    logits[3] = np.nan

    with pytest.raises(EngineError, match="NaN"):
        sample(logits, SamplingParams(), position=0)


def test_banned_ids_are_never_drawn() -> None:
    params = SamplingParams(temperature=1.0)

    drawn = {sample(LOGITS, params, position=p, banned=[4, 1]) for p in range(300)}

    assert drawn.isdisjoint({1, 4})


@given(SCORES, st.integers(0, 50))
def test_logprobs_are_those_of_the_softmax(scores: list[float], num_top: int) -> None:
    logits = np.array(scores, dtype=np.float32)

    found = logprobs_of(logits, 1, num_top)

    expected = np.log(softmax(logits))
    assert abs(found.logprob - expected[1]) < 1e-9
    assert min(num_top, len(scores)) == len(found.top)
    assert sorted(expected, reverse=True)[: len(found.top)] == pytest.approx(
        [logprob for _, logprob in found.top]
    )


@given(
    SCORES,
    st.floats(0, 5),
    st.integers(0, 10),
    st.floats(0.01, 1),
    st.floats(0, 1),
    st.integers(0, 1000),
)
def test_a_draw_is_always_among_the_candidates(
    scores: list[float], temperature: float, top_k: int, top_p: float, min_p: float, position: int
) -> None:
    logits = np.array(scores, dtype=np.float32)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)

    drawn = sample(logits, params, position=position)

    num_better = int((logits > logits[drawn]).sum())
    assert num_better == 0 or (temperature > 0 and (top_k == 0 or num_better < top_k))
