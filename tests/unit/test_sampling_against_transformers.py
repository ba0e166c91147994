"""Sampling against transformers: its processors on rows of logits, its model on whole texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from random_models import tiny_llama
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import engine_for
from flowforge.engine.samples import generate_samples
from flowforge.engine.sampling import SamplingParams, adjust, candidates, sample
from flowforge.engine.sequence import GenerationRequest, TokensArrived
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from flowforge.engine.engine import Engine
    from flowforge.engine.sampling import TokenLogprobs

VOCAB_SIZE = 120
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]


def rows(num_rows: int = 8) -> list[npt.NDArray[np.float32]]:
    drawn = np.random.default_rng(5)
    return [drawn.normal(0, 3, VOCAB_SIZE).astype(np.float32) for _ in range(num_rows)]


# -- one row of logits ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "warpers"),
    [
        (SamplingParams(temperature=0.7), []),
        (SamplingParams(temperature=1.3, top_k=7), [TopKLogitsWarper(7)]),
        (SamplingParams(temperature=1.3, top_p=0.8), [TopPLogitsWarper(0.8)]),
        (SamplingParams(temperature=2.0, min_p=0.1), [MinPLogitsWarper(0.1)]),
        (
            SamplingParams(temperature=0.9, top_k=20, top_p=0.7),
            [TopKLogitsWarper(20), TopPLogitsWarper(0.7)],
        ),
        (
            SamplingParams(temperature=0.9, top_k=9, min_p=0.05),
            [TopKLogitsWarper(9), MinPLogitsWarper(0.05)],
        ),
    ],
)
def test_the_distribution_is_that_of_transformers(
    params: SamplingParams, warpers: list[Any]
) -> None:
    temperature: list[Any] = [TemperatureLogitsWarper(params.temperature)]
    for scores in rows():
        warped = torch.tensor(scores[None])
        for warper in [*temperature, *warpers]:
            warped = warper(None, warped)
        expected = warped.softmax(dim=-1)[0].numpy()

        ids, weights = candidates(scores, params)

        found = np.zeros(VOCAB_SIZE)
        found[ids] = weights / weights.sum()
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert int(np.count_nonzero(expected)) == len(ids)


@pytest.mark.parametrize("penalty", [0.7, 1.5])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    prompt, output = [3, 4, 4, 5], [6, 3]
    processor: Any = RepetitionPenaltyLogitsProcessor(penalty)
    for scores in rows():
        expected = processor(torch.tensor([prompt + output]), torch.tensor(scores[None]))[0].numpy()

        params = SamplingParams(repetition_penalty=penalty)
        found = adjust(scores, params, prompt=prompt, output=output)

        np.testing.assert_array_equal(found, expected)


def test_branches_of_a_seed_draw_apart_and_each_again_the_same() -> None:
    (scores,) = rows(1)

    def draws(branch: int, seed: int = 3) -> list[int]:
        params = SamplingParams(temperature=2.0, seed=seed, branch=branch)
        return [sample(scores, params, position=position) for position in range(64)]

    streams = [draws(branch) for branch in range(20)]

    assert streams == [draws(branch) for branch in range(20)]
    assert 20 == len({tuple(stream) for stream in streams})
    # A branch is no shifted copy of another: that would show as equal neighbours.
    assert all(draws(0)[1:] != stream[:-1] for stream in streams)
    assert draws(1) != draws(0, seed=4)


@pytest.mark.parametrize("branch", [-1, 2**64])
def test_a_branch_out_of_range_is_refused(branch: int) -> None:
    with pytest.raises(EngineError, match="branch must be"):
        SamplingParams(branch=branch)


# -- whole texts on a small model -----------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(eos_token_id=1, initializer_range=0.3)


@pytest.fixture(scope="module")
def model_dir(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    model.save_pretrained(directory)
    return directory


def engine(model_dir: Path) -> Engine:
    config = EngineConfig(num_pages=64, page_size=4, num_threads=1, is_debug=True)
    return engine_for(model_dir, vocab_size=VOCAB_SIZE, config=config)


async def generate(
    running: Engine, prompt: list[int], params: SamplingParams
) -> tuple[list[int], list[TokenLogprobs]]:
    sequence = running.open(prompt)
    logprobs: list[TokenLogprobs] = []
    async for update in sequence.generate(GenerationRequest(params)):
        if isinstance(update, TokensArrived):
            logprobs += update.logprobs
    await sequence.close()
    return sequence.tokens[len(prompt) :], logprobs


@pytest.mark.parametrize("cached_len", [0, 3, 4, 9, 10, 11])
async def test_logprobs_are_those_of_the_whole_text_whatever_is_cached(
    model: Any, model_dir: Path, cached_len: int
) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True, num_logprobs=3)
    async with engine(model_dir) as running:
        if cached_len:
            await generate(running, PROMPT[:cached_len], SamplingParams(max_tokens=1))
        tokens, logprobs = await generate(running, PROMPT, params)

    expected = log_softmax(model, [*PROMPT, *tokens])[len(PROMPT) - 1 : -1]
    assert tokens == [one.token_id for one in logprobs]
    for row, token, found in zip(expected, tokens, logprobs, strict=True):
        assert float(row[token]) == pytest.approx(found.logprob, abs=1e-5)
        values, ids = row.topk(3)
        assert ids.tolist() == [token_id for token_id, _ in found.top]
        assert values.tolist() == pytest.approx([value for _, value in found.top], abs=1e-5)


@pytest.mark.parametrize("cached_len", [0, 4, 7, 10, 11])
async def test_prompt_logprobs_are_those_of_the_model_whatever_is_cached(
    model: Any, model_dir: Path, cached_len: int
) -> None:
    async with engine(model_dir) as running:
        if cached_len:
            await generate(running, PROMPT[:cached_len], SamplingParams(max_tokens=1))
        sequence = running.open(PROMPT[:1])
        scored = await sequence.score(PROMPT[1:], num_top=2)

    expected = log_softmax(model, PROMPT)
    assert PROMPT[1:] == [one.token_id for one in scored]
    for row, found in zip(expected, scored, strict=False):
        assert float(row[found.token_id]) == pytest.approx(found.logprob, abs=1e-5)
        assert row.topk(2).indices.tolist() == [token_id for token_id, _ in found.top]


@torch.inference_mode()
def log_softmax(model: Any, tokens: list[int]) -> torch.Tensor:
    result: torch.Tensor = model(torch.tensor([tokens])).logits[0].log_softmax(dim=-1)
    return result


@pytest.mark.parametrize("cached_len", [0, 8, 11])
async def test_a_repetition_penalty_sees_a_cached_prompt(
    model: Any, model_dir: Path, cached_len: int
) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True, repetition_penalty=3.0)
    async with engine(model_dir) as running:
        if cached_len:
            await generate(running, PROMPT[:cached_len], SamplingParams(max_tokens=1))
        tokens, _ = await generate(running, PROMPT, params)

    expected = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT)),
        do_sample=False,
        max_new_tokens=8,
        repetition_penalty=3.0,
        eos_token_id=None,
    )[0, len(PROMPT) :].tolist()
    assert expected == tokens


class Allowing:
    """A constraint that allows the same ids everywhere, the end (1) among them."""

    is_complete = False
    is_accepting = True

    def __init__(self, *allowed: int) -> None:
        self._allowed = allowed

    def limit_to(self, num_tokens: int) -> None:
        assert num_tokens > 0

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        bits = np.zeros(len(out) * 32, dtype=np.uint8)
        bits[list(self._allowed)] = 1
        out[:] = np.packbits(bits, bitorder="little").view(np.uint32)

    def advance(self, token_id: int) -> bool:
        return token_id in self._allowed

    def forced_tokens(self) -> list[int]:
        return []

    def fork(self) -> Allowing:
        return Allowing(*self._allowed)


@pytest.mark.parametrize(
    ("min_tokens", "allowed", "expected_len"),
    [(0, None, 1), (5, None, 6), (0, (1, 7), 1), (5, (1, 7), 6), (5, (1,), 1)],
)
async def test_no_end_comes_before_the_least_number_of_tokens_if_another_may_come(
    model_dir: Path, min_tokens: int, allowed: tuple[int, ...] | None, expected_len: int
) -> None:
    params = SamplingParams(max_tokens=9, logit_bias={1: 100.0}, min_tokens=min_tokens)
    constraint = None if allowed is None else Allowing(*allowed)
    async with engine(model_dir) as running:
        sequence = running.open(PROMPT)
        async for _ in sequence.generate(GenerationRequest(params, constraint)):
            pass

    assert expected_len == len(sequence.tokens) - len(PROMPT)


# -- several outputs of one prompt ----------------------------------------------------------------


async def test_samples_of_a_prompt_cost_one_prefill_and_differ(model_dir: Path) -> None:
    request = GenerationRequest(SamplingParams(temperature=2.0, seed=4, max_tokens=6))
    async with engine(model_dir) as running:
        sequence = running.open(PROMPT)
        four = await generate_samples(sequence, request, 4)
        settled = await running.settle()
        await sequence.close()
        after = await running.settle()

    assert PROMPT == sequence.tokens
    assert len(PROMPT) == settled.prefilled_tokens
    assert 4 == len({output.token_ids for output in four})
    assert {"stop", "length"} >= {output.reason for output in four}
    assert 0 == after.kv.pages_held


async def test_a_sample_does_not_depend_on_how_many_there_are(model_dir: Path) -> None:
    request = GenerationRequest(SamplingParams(temperature=2.0, seed=4, max_tokens=6))
    outputs = []
    for num_samples in (1, 5):
        async with engine(model_dir) as running:
            outputs.append(await generate_samples(running.open(PROMPT), request, num_samples))

    assert outputs[0][0].token_ids == outputs[1][0].token_ids


class AfterTwo:
    """Stops at the second token."""

    def __init__(self) -> None:
        self._num_tokens = 0

    def is_met_by(self, token_ids: list[int]) -> bool:
        self._num_tokens += len(token_ids)
        return self._num_tokens >= 2


async def test_each_sample_has_a_stop_condition_of_its_own(model_dir: Path) -> None:
    params = SamplingParams(temperature=2.0, max_tokens=6, ignore_eos=True)
    async with engine(model_dir) as running:
        sequence = running.open(PROMPT)
        found = await generate_samples(sequence, GenerationRequest(params), 3, make_stop=AfterTwo)
        with pytest.raises(EngineError, match="one stop condition cannot serve several"):
            await generate_samples(sequence, GenerationRequest(params, stop=AfterTwo()), 3)
        with pytest.raises(EngineError, match="num_samples must be at least 1, got 0"):
            await generate_samples(sequence, GenerationRequest(params), 0)

    assert [(2, "stop")] * 3 == [(len(output.token_ids), output.reason) for output in found]
