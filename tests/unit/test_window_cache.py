"""Sliding windows and cached prefixes together, in the engine (case KV-034)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from random_models import tiny_model

from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import engine_for
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_prompt_longer_than_the_window_runs_twice_alike(tmp_path: Path) -> None:
    """KV-034: a window of 64, a prompt of 200 tokens, the second time from the cache."""
    model = tiny_model("Mistral", max_position_embeddings=512, sliding_window=64)
    model.save_pretrained(tmp_path)
    prompt: list[int] = torch.randint(
        3, 120, (200,), generator=torch.Generator().manual_seed(1)
    ).tolist()
    expected = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, 200),
        do_sample=False,
        max_new_tokens=12,
        eos_token_id=None,
    )[0, 200:].tolist()
    config = EngineConfig(num_pages=40, num_threads=1, is_debug=True)
    request = GenerationRequest(SamplingParams(max_tokens=12, ignore_eos=True))

    async with engine_for(tmp_path, vocab_size=120, config=config) as engine:
        for _ in range(2):
            sequence = engine.open(prompt)
            async for _update in sequence.generate(request):
                pass
            assert expected == sequence.tokens[200:]
            await sequence.close()
        settled = await engine.settle()
        await engine.check_invariants()

    assert settled.kv.reused_tokens >= 199
    assert (0, 40) == (settled.kv.pages_held, settled.kv.pages_free + settled.kv.pages_cached)
