"""Every family through the engine: what is cached, batched, cut or forked changes no answer.

Each answer is compared with that of transformers to the same prompt alone: greedy ids, and the log
probability of each. Debug mode is on: free pages hold NaN, and every read is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from core_client import Client
from family_models import FAMILIES, family_model
from history_model import Updates
from model_core import model_core

from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFinished,
    GenerationRequest,
    SequenceId,
    TokensArrived,
)

if TYPE_CHECKING:
    from flowforge.engine.core import EngineCore
    from flowforge.engine.models.decoder import Decoder

# float32 sums in another order, over three layers and rows of at most 96.
TOLERANCE = 1e-4
NUM_OUTPUT = 12
REQUEST = SamplingParams(max_tokens=NUM_OUTPUT, num_logprobs=0)


@dataclass(frozen=True, slots=True)
class Family:
    """A model, a prompt, and what transformers says of it."""

    decoder: Decoder
    prompt: list[int]
    ids: list[int]
    logprobs: list[float]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    directory = tmp_path_factory.mktemp("model")
    model = family_model(request.param)
    model.save_pretrained(directory)
    prompt = numbers(23, seed=1)
    model.generation_config.eos_token_id = None
    text = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        do_sample=False,
        max_new_tokens=NUM_OUTPUT,
        eos_token_id=None,
    )[0]
    with torch.inference_mode():
        logprobs = model(text[None]).logits[0].log_softmax(-1)
    ids = text[len(prompt) :].tolist()
    said = [logprobs[len(prompt) - 1 + n, token].item() for n, token in enumerate(ids)]
    return Family(load_decoder(directory, dtype=torch.float32), prompt, ids, said)


def numbers(length: int, seed: int) -> list[int]:
    """Token ids; of different seeds none begin alike."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(3, 120, (length,), generator=generator).tolist()
    return [seed, *ids[1:]]


def begin(core: EngineCore, sequence: SequenceId) -> Updates:
    updates = Updates()
    core.generate(sequence, GenerationRequest(REQUEST), updates)
    return updates


def require_right(family: Family, updates: Updates, *, start: int = 0) -> None:
    """The answer from its token `start` on is that of transformers."""
    arrived = [update for update in updates if isinstance(update, TokensArrived)]
    ids = [token for update in arrived for token in update.token_ids]
    said = [one.logprob for update in arrived for one in update.logprobs]
    assert isinstance(updates[-1], GenerationFinished), updates[-1]
    num_common = NUM_OUTPUT - start
    assert family.ids[start:] == ids[:num_common]
    assert family.logprobs[start:] == pytest.approx(said[:num_common], abs=TOLERANCE)


@pytest.mark.parametrize("chunk_len", [1, 7, 64])
def test_chunks_of_any_size_give_the_same_answer(family: Family, chunk_len: int) -> None:
    core, _ = model_core(family.decoder, max_step_tokens=chunk_len)
    client = Client(core)

    updates = begin(core, client.open(family.prompt))
    client.run()

    require_right(family, updates)


def test_an_answer_in_a_batch_of_eight_is_that_of_a_batch_of_one(family: Family) -> None:
    core, _ = model_core(family.decoder, num_pages=128)
    client = Client(core)
    strangers = [client.open(numbers(5 + 4 * n, seed=10 + n)) for n in range(7)]

    others = [begin(core, stranger) for stranger in strangers[:4]]
    updates = begin(core, client.open(family.prompt))
    others += [begin(core, stranger) for stranger in strangers[4:]]
    core.step()
    core.step()
    assert 8 == core.statistics().scheduler.num_running
    client.run()

    assert all(isinstance(other[-1], GenerationFinished) for other in others)
    require_right(family, updates)


@pytest.mark.parametrize("is_cache_lost", [False, True])
def test_a_preempted_sequence_gives_the_answer_of_one_that_was_not(
    family: Family, is_cache_lost: bool
) -> None:
    core, kv = model_core(family.decoder, max_step_tokens=16)
    client = Client(core)
    sequence = client.open(family.prompt)
    updates = begin(core, sequence)

    for _ in range(4):  # in the middle of the prompt, and three times behind it
        core.step()
        core.preempt(sequence)
        if is_cache_lost:
            kv.drop_cached()
    client.run()

    assert 4 == core.statistics().scheduler.num_preemptions
    assert is_cache_lost == (core.statistics().recomputed_tokens > 0)
    require_right(family, updates)


def test_what_is_cached_changes_no_answer(family: Family) -> None:
    """Nothing, 10 tokens, the whole prompt, and prompt and answer; then nothing for others."""
    core, kv = model_core(family.decoder)
    client = Client(core)
    client.start(client.open(family.prompt[:10]), 1)
    client.run()
    reused = [kv.statistics().reused_tokens]

    for namespace in (None, None, Namespace(salt="off")):
        updates = begin(core, client.open(family.prompt, namespace))
        client.run()
        require_right(family, updates)
        reused.append(kv.statistics().reused_tokens)
    longer = begin(core, client.open([*family.prompt, *family.ids[:5]]))
    client.run()
    require_right(family, longer, start=5)
    reused.append(kv.statistics().reused_tokens)

    gains = [after - before for before, after in pairwise(reused)]
    assert [10, len(family.prompt), 0, len(family.prompt) + 4] == gains


def test_a_fork_gives_the_answer_of_a_fresh_sequence(family: Family) -> None:
    """Before the answer, in its middle, and of a fork in its middle."""
    core, _ = model_core(family.decoder)
    client = Client(core)
    parent = client.open(family.prompt)
    core.prefill(parent, Updates())
    client.run()

    forked = client.fork(parent)
    answers = [(0, begin(core, forked))]
    for start in (3, 7):
        while core.num_tokens(forked) < len(family.prompt) + start:
            core.step()
        forked = client.fork(forked)
        answers.append((start, begin(core, forked)))
    client.run()

    for start, updates in answers:
        require_right(family, updates, start=start)


def test_two_equal_prompts_at_once_are_right_and_right_again_after_eviction(
    family: Family,
) -> None:
    """The use after free of small engines: one of the twins kept pages that were given away."""
    core, kv = model_core(family.decoder, num_pages=24)
    client = Client(core)

    twins = [begin(core, client.open(family.prompt)) for _ in range(2)]
    core.step()
    pressure = [begin(core, client.open(numbers(30, seed=20 + n))) for n in range(4)]
    client.run()
    evicted = kv.statistics().evicted_pages
    again = begin(core, client.open(family.prompt))
    client.run()

    assert evicted > 0
    assert all(isinstance(other[-1], GenerationFinished) for other in pressure)
    for updates in (*twins, again):
        require_right(family, updates)
    core.check_invariants()
