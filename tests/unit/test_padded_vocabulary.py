"""A model with more rows than its tokenizer has ids, in the engine (case ML-011)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from random_models import tiny_llama

from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import engine_for
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

NUM_IDS, NUM_ROWS = 50, 64


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A model that says nothing but padded ids when it is let."""
    model = tiny_llama(
        vocab_size=NUM_ROWS, num_hidden_layers=1, max_position_embeddings=64, eos_token_id=None
    )
    with torch.no_grad():
        model.lm_head.weight[NUM_IDS:] = 100 * model.lm_head.weight[NUM_IDS:]
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_ids_past_the_tokenizer_are_never_said(model_dir: Path, temperature: float) -> None:
    config = EngineConfig(num_pages=8, num_threads=1)
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=1)
    async with engine_for(model_dir, vocab_size=NUM_IDS, config=config) as engine:
        sequence = engine.open([1, 2, 3])
        async for _ in sequence.generate(GenerationRequest(params)):
            pass

    assert len(sequence.tokens) == 23
    assert max(sequence.tokens) < NUM_IDS


async def test_likelihoods_are_of_the_ids_that_can_be_said(model_dir: Path) -> None:
    """Whether a token's logits were kept or are computed with those of the others."""
    config = EngineConfig(num_pages=8, num_threads=1)
    async with engine_for(model_dir, vocab_size=NUM_IDS, config=config) as engine:
        kept, fresh = engine.open([1, 2, 3]), engine.open([1, 2, 3])
        computed = await fresh.score([4, 5])
        await kept.prefill()
        from_kept = await kept.score([4, 5])

    assert computed[0].logprob == pytest.approx(from_kept[0].logprob, abs=1e-5)
    # Nearly all of the weight lies on ids that are none.
    assert computed[0].logprob > -2 * math.log(NUM_IDS)


async def test_context_longer_than_the_model_knows_is_refused_at_start(model_dir: Path) -> None:
    config = EngineConfig(num_pages=8, num_threads=1, context_len=65)

    with pytest.raises(EngineError, match="65 tokens") as caught:
        async with engine_for(model_dir, vocab_size=NUM_IDS, config=config):
            pass

    assert caught.value.code == "EN114"
