"""The engine on the GPU's path, interpreted: kernels attend, norm, turn and gate in every step.

Debug mode is on: free pages hold NaN, and every read is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import model_core as cores
import pytest
import torch
from core_client import Client
from family_models import family_model
from history_model import Updates
from kernel_heads import on_the_cpu

from flowforge.engine.attention.kernel_attention import KernelBackend, kernel_backend
from flowforge.engine.kernels.operators import KernelOperators
from flowforge.engine.models import decoder as decoders
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, SequenceId, TokensArrived

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.config import SharedAttention
    from flowforge.engine.kv.store import KvStore
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.native.attention_library import AttentionLibrary
    from flowforge.engine.sampling import TokenLogprobs

pytestmark = on_the_cpu

# float32 sums in another order, over three layers and rows of at most 96.
TOLERANCE = 1e-4
PARENT = [3 + (7 * idx) % 110 for idx in range(13)]


def told(decoder: Decoder) -> list[TokenLogprobs]:
    """A prompt in chunks, two branches of it beside each other: all logits that were sampled from,
    as log probabilities of the likeliest tokens."""
    core, _ = cores.model_core(decoder, num_pages=16, max_step_tokens=9)
    client = Client(core)
    root = client.open(PARENT)
    answers = [_begin(client, root, 1)]
    client.run()
    for idx in range(2):
        branch = client.fork(root)
        core.append(branch, [10 + idx, 20])
        answers.append(_begin(client, branch, 3))
    client.run()
    core.check_invariants()
    updates = [update for answer in answers for update in answer]
    arrived = [update for update in updates if isinstance(update, TokensArrived)]
    return [one for update in arrived for one in update.logprobs]


def _begin(client: Client, sequence: SequenceId, max_tokens: int) -> Updates:
    updates = Updates()
    params = SamplingParams(max_tokens=max_tokens, num_logprobs=20)
    client.core.generate(sequence, GenerationRequest(params), updates)
    return updates


# What they have that others have not: norms of heads; caps, norms behind and GELU; windows and
# layers without positions. Heads that turn in part are in the kernels' own tests.
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "smollm3, window"])
def test_logits_are_those_of_the_torch_path(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family_model(family).save_pretrained(tmp_path)
    by_torch = told(load_decoder(tmp_path, dtype=torch.float32))
    made: list[KernelBackend] = []

    def backend(
        store: KvStore, choice: SharedAttention, _: AttentionLibrary | None
    ) -> KernelBackend:
        made.append(kernel_backend(store, by_kernels.config.num_heads, choice))
        return made[-1]

    def operators(device: torch.device) -> KernelOperators:
        assert device.type == "cpu"
        return KernelOperators()

    monkeypatch.setattr(decoders, "operators_for", operators)
    monkeypatch.setattr(cores, "choose_backend", backend)
    by_kernels = load_decoder(tmp_path, dtype=torch.float32)
    found = told(by_kernels)

    assert 1 == len(made)
    assert [one.token_id for one in by_torch] == [one.token_id for one in found]
    assert 7 == len(found)
    for expected, one in zip(by_torch, found, strict=True):
        assert dict(expected.top) == pytest.approx(dict(one.top), abs=TOLERANCE)
