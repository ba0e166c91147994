"""Steps that draw where the logits are, on a real decoder: the tokens of those that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from core_client import Client
from history_model import Updates
from kernel_heads import on_the_cpu
from model_core import model_core
from random_models import tiny_llama

from flowforge.engine.device_copies import CopyToHost, to_device
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.row_draw import NO_NUMBER, NO_TOKEN, RowDraw
from flowforge.engine.row_sampler import HostSampler, KernelSampler
from flowforge.engine.sampling import SamplingParams, logprobs_of
from flowforge.engine.sequence import GenerationFinished, GenerationRequest, TokensArrived

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.core import EngineCore
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.row_sampler import RowSampler
    from flowforge.engine.sampling import TokenLogprobs

VOCAB_SIZE = 120
END = 12
PARAMS = [
    SamplingParams(max_tokens=9),
    SamplingParams(max_tokens=9, temperature=1.0, seed=1, num_logprobs=2),
    SamplingParams(max_tokens=9, temperature=1.5, top_k=9, top_p=0.9, seed=2, ignore_eos=True),
    SamplingParams(
        max_tokens=9,
        temperature=0.7,
        min_p=0.05,
        repetition_penalty=1.4,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        logit_bias={3: 4.0, 9: -100.0},
        min_tokens=6,
        seed=3,
    ),
    SamplingParams(max_tokens=9, num_logprobs=0, frequency_penalty=0.2, min_tokens=9),
]


class EvenIds:
    """A constraint."""

    is_complete = False
    is_accepting = False

    def fill_mask(self, out: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
        out.fill(0x55555555)

    def limit_to(self, num_tokens: int) -> None:
        del num_tokens

    def advance(self, token_id: int) -> bool:
        assert token_id % 2 == 0
        return True

    def forced_tokens(self) -> list[int]:
        return []

    def fork(self) -> EvenIds:
        return self


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    tiny_llama(vocab_size=VOCAB_SIZE).save_pretrained(directory)
    return load_decoder(directory, dtype=torch.float32)


def core_on(decoder: Decoder, sampler: RowSampler | None, *, num_pages: int = 96) -> EngineCore:
    core, _ = model_core(
        decoder, sampler=sampler, eos_token_ids=frozenset({END}), num_pages=num_pages
    )
    return core


def answers(core: EngineCore) -> tuple[list[list[int]], list[TokenLogprobs]]:
    """Of forks of one prompt, of prompts of their own, one with a constraint, and scored ones."""
    client = Client(core)
    root = client.open([*range(20, 33)])
    core.prefill(root, Updates())
    client.run()
    updates: list[Updates] = []
    for number, params in enumerate(PARAMS):
        for sequence in (client.fork(root), client.open([40 + number, 3, 9, 9])):
            updates.append(Updates())
            core.generate(sequence, GenerationRequest(params), updates[-1])
    for _ in range(4):
        core.step()
    updates.append(Updates())
    core.generate(client.fork(root), GenerationRequest(PARAMS[1], EvenIds()), updates[-1])
    scored = Updates()
    core.score(client.open([5, 6, 7]), [*range(30, 60)], scored, 3)
    client.run()
    core.check_invariants()
    arrived = [[one for one in each if isinstance(one, TokensArrived)] for each in updates]
    end = scored[-1]
    assert isinstance(end, GenerationFinished)
    return (
        [[token for one in each for token in one.token_ids] for each in arrived],
        [*(entry for each in arrived for one in each for entry in one.logprobs), *end.scored],
    )


def assert_alike(expected: list[TokenLogprobs], found: list[TokenLogprobs]) -> None:
    for one, other in zip(expected, found, strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert [value for _, value in one.top] == pytest.approx(
            [value for _, value in other.top], abs=1e-5
        )


def test_tokens_that_are_drawn_where_the_logits_are_are_those_of_the_host(
    decoder: Decoder,
) -> None:
    expected_ids, expected = answers(core_on(decoder, None))
    core = core_on(decoder, HostSampler())

    found_ids, found = answers(core)

    assert expected_ids == found_ids
    assert_alike(expected, found)
    assert any(END in ids for ids in found_ids), "no text ends before its length"
    assert core.statistics().steps.num_ahead > 0


@on_the_cpu
def test_kernels_draw_what_the_host_draws_from_everything_that_a_choice_depends_on() -> None:
    random = np.random.default_rng(4)
    # Rows that lie apart, as where a vocabulary is padded.
    logits = torch.from_numpy(random.normal(size=(4, 260)).astype(np.float32) * 3)[:, :250]
    logits[3, 11] = torch.nan
    seen = random.integers(0, 250, 30).tolist()
    mask = random.integers(0, 2**32, 8, dtype=np.uint32)
    draws = [
        RowDraw(0, PARAMS[3], 20, None, (2, 5), seen[:20], seen[20:]),
        RowDraw(1, PARAMS[2], 9, mask),
        RowDraw(2, PARAMS[0], 9, np.zeros(8, dtype=np.uint32)),
        RowDraw(3, PARAMS[1], 9),
    ]

    found = KernelSampler().sample(logits, draws)

    assert HostSampler().sample(logits, draws).tolist() == found.tolist()
    assert [NO_TOKEN, NO_NUMBER] == found.tolist()[2:]


def test_log_probabilities_on_a_device_are_those_of_the_host_and_equal_ones_in_order() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn((40, VOCAB_SIZE), generator=generator).mul(4).round().div(4)
    logits[0, :] = 0.0
    logits[1, 5], logits[1, 6] = -0.0, 0.0
    logits[2, 1:] = -torch.inf
    ids = torch.arange(40) % 7

    own, best, top = KernelSampler().logprobs(logits, ids, 5)

    expected = [
        logprobs_of(row, int(token), 5) for row, token in zip(logits.numpy(), ids, strict=True)
    ]
    assert [[token for token, _ in one.top] for one in expected] == best.tolist()
    np.testing.assert_allclose([one.logprob for one in expected], own, rtol=1e-9)
    tops = [[value for _, value in one.top] for one in expected]
    np.testing.assert_allclose(tops, top, rtol=1e-9)


def test_log_probabilities_of_the_host_are_the_same_bits_whoever_asks_for_them() -> None:
    logits = torch.randn((9, VOCAB_SIZE), generator=torch.Generator().manual_seed(5))
    logits[4, 7] = torch.nan
    ids = torch.arange(9) - 1

    own, best, top = HostSampler().logprobs(logits, ids, 3)

    for row in (idx for idx in range(9) if idx != 4):
        expected = logprobs_of(logits[row].numpy(), max(0, int(ids[row])), 3)
        likeliest = zip(best[row].tolist(), top[row].tolist(), strict=True)
        assert (expected.logprob, expected.top) == (float(own[row]), tuple(likeliest))
    assert torch.isnan(own[4])


def test_arrays_of_all_types_and_sizes_share_one_copy() -> None:
    arrays: list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = [
        np.array([[1.5, -2.0]], dtype=np.float64),
        np.array([7], dtype=np.int32),
        np.zeros((0, 3), dtype=np.int64),
        np.arange(5, dtype=np.float32)[::2],
    ]

    there = to_device(arrays, torch.device("cpu"))
    back = CopyToHost(there).read()

    for array, one in zip(arrays, back, strict=True):
        np.testing.assert_array_equal(array, one)
        assert array.dtype == one.dtype
    assert 1 == len({one.untyped_storage().data_ptr() for one in there})
    assert [] == CopyToHost([]).read()
