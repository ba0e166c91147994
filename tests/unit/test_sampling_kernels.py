"""Sampling by the Triton kernels: the very tokens that `sample` chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from kernel_heads import on_the_cpu

from flowforge.engine.kernels.row_params import Biases, RowParams, Seen
from flowforge.engine.kernels.sampling import (
    adjust_rows,
    draw_tokens,
    gumbel_tokens,
    sample_rows,
)
from flowforge.engine.row_draw import NO_NUMBER, NO_TOKEN
from flowforge.engine.sampling import SamplingParams, adjust, sample

if TYPE_CHECKING:
    import numpy.typing as npt

    Logits: TypeAlias = npt.NDArray[np.float32]

pytestmark = on_the_cpu

# Two blocks, the second not full.
VOCAB_SIZE = 300
PROMPT = list(range(0, 60, 3))
OUTPUT = [5, 5, 7, 100, 299, 5, 3, 100]

PARAMS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=0.8, seed=3),
    "top-k, long seed": SamplingParams(temperature=1.2, top_k=5, seed=2**70 + 5, branch=2**40 + 1),
    "top-p": SamplingParams(temperature=1.0, top_p=0.7, seed=2**64 - 1),
    "min-p": SamplingParams(temperature=1.5, min_p=0.1, seed=1),
    "all limits": SamplingParams(temperature=1, top_k=40, top_p=0.9, min_p=0.02, seed=12),
    "the best": SamplingParams(temperature=1, top_k=1, seed=12),
    "penalties": SamplingParams(
        temperature=0.7,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.2,
        logit_bias={11: 2.5, 5: -100, 299: 4},
    ),
}


def random_logits(seed: int, num_rows: int = len(PARAMS)) -> Logits:
    """Some of them equal."""
    logits = np.random.default_rng(seed).normal(size=(num_rows, VOCAB_SIZE)) * 3
    return (np.round(logits * 4) / 4).astype(np.float32)


def seen_by(num_rows: int) -> Seen:
    is_seen = torch.zeros((num_rows, VOCAB_SIZE), dtype=torch.bool)
    is_seen[:, PROMPT + OUTPUT] = True
    counts = np.bincount(OUTPUT, minlength=VOCAB_SIZE).astype(np.int32)
    return Seen(is_seen, torch.from_numpy(counts).repeat(num_rows, 1))


def biases_of(params: list[SamplingParams]) -> Biases:
    entries = [
        (row, token_id, -np.inf if bias <= -100 else bias)
        for row, one in enumerate(params)
        for token_id, bias in one.logit_bias.items()
    ]
    rows, ids, values = zip(*entries, strict=True)
    return Biases(torch.tensor(rows), torch.tensor(ids), torch.tensor(values, dtype=torch.float32))


def test_rows_get_the_tokens_that_the_cpu_samples() -> None:
    params = list(PARAMS.values())
    logits = random_logits(1)
    positions = [17 + 5 * idx for idx in range(len(params))]
    num_words = -(-VOCAB_SIZE // 32)
    random = np.random.default_rng(2)
    mask = random.integers(0, 2**32, size=(len(params), num_words), dtype=np.uint32)

    found = sample_rows(
        torch.from_numpy(logits),
        RowParams.of(params, positions, "cpu"),
        seen=seen_by(len(params)),
        biases=biases_of(params),
        mask=torch.from_numpy(mask.view(np.int32)),
    )

    expected = [
        sample(
            adjust(row, one, prompt=PROMPT, output=OUTPUT),
            one,
            position=position,
            mask=allowed,
        )
        for row, one, position, allowed in zip(logits, params, positions, mask, strict=True)
    ]
    assert expected == found.tolist()


def test_penalties_and_biases_give_the_scores_of_the_cpu() -> None:
    params = [PARAMS["penalties"], PARAMS["greedy"]]
    logits = random_logits(3, 2)

    found = adjust_rows(
        torch.from_numpy(logits),
        RowParams.of(params, [1, 2], "cpu"),
        seen=seen_by(2),
        biases=biases_of(params),
    )

    expected = adjust(logits[0], params[0], prompt=PROMPT, output=OUTPUT)
    np.testing.assert_allclose(found.scores[0].numpy(), expected, rtol=1e-6)
    np.testing.assert_array_equal(found.scores[1].numpy(), logits[1])


def test_rows_without_a_choice_say_why() -> None:
    logits = torch.zeros((3, VOCAB_SIZE))
    logits[0, 299] = torch.nan
    mask = torch.full((3, 10), -1, dtype=torch.int32)
    mask[1] = 0
    params = [SamplingParams(temperature=1), SamplingParams(), SamplingParams()]

    found = sample_rows(logits, RowParams.of(params, [0] * 3, "cpu"), mask=mask)

    assert [NO_NUMBER, NO_TOKEN, 0] == found.tolist()


def test_gumbel_noise_comes_from_its_counter_and_limits_hold() -> None:
    params = [
        SamplingParams(temperature=0.9, seed=2**33 + 4, branch=2**35 + 6),
        SamplingParams(temperature=2.0, top_k=3, seed=8),
        SamplingParams(),
    ]
    logits = random_logits(5, 3)
    rows = RowParams.of(params, [70, 2, 3], "cpu")

    scores = adjust_rows(torch.from_numpy(logits), rows)
    found = gumbel_tokens(scores, rows).tolist()

    values = logits[0] / 0.9 + gumbel_noise(params[0], 70)
    assert int(values.argmax()) == found[0]
    # Of equal scores the lower ids are the better ones.
    assert found[1] in np.argsort(-logits[1], kind="stable")[:3]
    assert int(logits[2].argmax()) == found[2]
    assert found == gumbel_tokens(scores, rows).tolist()


def test_gumbel_noise_has_its_mean_and_deviation() -> None:
    params = [SamplingParams(temperature=1, seed=seed) for seed in range(30)]

    noise = np.concatenate([gumbel_noise(one, 4) for one in params])

    # Euler's number and π / √6, within four standard deviations of 9,000 draws.
    assert abs(noise.mean() - 0.5772) < 4 * 1.2825 / len(noise) ** 0.5
    assert abs(noise.std() - 1.2825) < 0.1


def test_a_draw_takes_numpys_number_at_this_counter() -> None:
    # With equal weights a token is where the uniform number falls.
    params = [SamplingParams(temperature=1, seed=5, branch=branch) for branch in range(6)]
    rows = RowParams.of(params, range(6), "cpu")

    found = draw_tokens(adjust_rows(torch.zeros((6, VOCAB_SIZE)), rows), rows)

    zeros = np.zeros(VOCAB_SIZE, dtype=np.float32)
    expected = [sample(zeros, one, position=idx) for idx, one in enumerate(params)]
    assert expected == found.tolist()
    assert len(set(expected)) > 3


def gumbel_noise(
    params: SamplingParams, position: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Philox 4x32 with ten rounds (Salmon et al., 2011), written out."""
    low = 2**32 - 1
    words = [
        np.arange(VOCAB_SIZE, dtype=np.uint64),
        *(
            np.full(VOCAB_SIZE, word, dtype=np.uint64)
            for word in (position, params.branch & low, params.branch >> 32)
        ),
    ]
    keys = [params.seed & low, params.seed >> 32 & low]
    for _ in range(10):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            second >> np.uint64(32) ^ words[1] ^ np.uint64(keys[0]),
            second & np.uint64(low),
            first >> np.uint64(32) ^ words[3] ^ np.uint64(keys[1]),
            first & np.uint64(low),
        ]
        keys = [(keys[0] + 0x9E3779B9) & low, (keys[1] + 0xBB67AE85) & low]
    uniform = (words[0].astype(np.float64) + 0.5) / 2**32
    return -np.log(-np.log(uniform))
