"""Shared attention through the engine, on every family: what is read, and that it changes nothing.

Debug mode is on: free pages hold NaN, and every read is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from core_client import Client
from family_models import FAMILIES, family_model
from history_model import Updates
from model_core import model_core

from flowforge.engine.attention.compiled import find_attention_library
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, SequenceId, TokensArrived

if TYPE_CHECKING:
    from flowforge.engine.config import SharedAttention
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.native.attention_library import AttentionLibrary
    from flowforge.engine.statistics import ReadStatistics

# float32 sums in another order, over three layers and rows of at most 128.
TOLERANCE = 1e-4
# Whole tiles of the kernel, so that it shares all full pages.
PAGE_SIZE = 32
PARENT = [3 + (7 * idx) % 110 for idx in range(2 * PAGE_SIZE + 5)]


@pytest.fixture(scope="module", params=FAMILIES)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory = tmp_path_factory.mktemp("model")
    family_model(request.param).save_pretrained(directory)
    return load_decoder(directory, dtype=torch.float32)


@pytest.fixture(scope="module")
def kernel() -> AttentionLibrary:
    library = find_attention_library()
    if library is None:
        pytest.skip("there is no C compiler here")
    return library


def branched(
    decoder: Decoder, shared: SharedAttention, kernel: AttentionLibrary | None
) -> tuple[list[tuple[int, float]], ReadStatistics]:
    """Two levels of forks, one branch of them preempted: all tokens with their log probabilities,
    and what the steps read in which every branch decodes."""
    core, _ = model_core(
        decoder, num_pages=40, page_size=PAGE_SIZE, shared_attention=shared, kernel=kernel
    )
    client = Client(core)
    root = client.open(PARENT)
    answers = [_begin(client, root)]
    client.run()
    middle = client.fork(root)
    core.append(middle, [5 + idx for idx in range(PAGE_SIZE)])
    answers.append(_begin(client, middle))
    client.run()
    branches = [client.fork(middle if idx % 2 else root) for idx in range(5)]
    for idx, branch in enumerate(branches):
        core.append(branch, [10 + idx])
        answers.append(_begin(client, branch))
    core.step()
    core.preempt(branches[1])
    for _ in range(3):
        core.step()
    before = core.statistics()
    assert 5 == before.scheduler.num_running
    core.step()
    reads = core.statistics().since(before).reads
    client.run()
    core.check_invariants()
    arrived = [update for answer in answers for update in answer]
    return [
        (one.token_id, one.logprob)
        for update in arrived
        if isinstance(update, TokensArrived)
        for one in update.logprobs
    ], reads


def _begin(client: Client, sequence: SequenceId) -> Updates:
    updates = Updates()
    params = SamplingParams(max_tokens=8, num_logprobs=0)
    client.core.generate(sequence, GenerationRequest(params), updates)
    return updates


def test_branches_say_the_same_with_and_without_shared_attention(decoder: Decoder) -> None:
    shared, reads = branched(decoder, "on", None)
    alone, reads_alone = branched(decoder, "off", None)

    assert [token for token, _ in alone] == [token for token, _ in shared]
    assert [one for _, one in alone] == pytest.approx([one for _, one in shared], abs=TOLERANCE)
    assert 1.0 == reads.amplification
    assert reads_alone.logical_rows == reads_alone.read_rows
    assert reads_alone.amplification == reads_alone.ratio > 2


def test_the_kernel_says_what_torch_says_and_sharing_changes_no_bit(
    decoder: Decoder, kernel: AttentionLibrary
) -> None:
    by_torch, _ = branched(decoder, "off", None)
    shared, reads = branched(decoder, "auto", kernel)
    alone, reads_alone = branched(decoder, "off", kernel)

    assert [token for token, _ in by_torch] == [token for token, _ in shared]
    assert [one for _, one in by_torch] == pytest.approx([one for _, one in shared], abs=TOLERANCE)
    assert alone == shared
    assert 1.0 == reads.amplification
    assert reads_alone.logical_rows == reads_alone.read_rows
