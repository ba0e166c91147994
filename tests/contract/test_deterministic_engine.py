"""Results have the same bits whatever shares their steps, was cached, forked or evicted."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import gguf
import pytest
from gguf_files import TOKENS
from quantized_models import converted
from random_models import random_model, small_llama

from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import engine_for
from flowforge.engine.native.library import find_library
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, TokensArrived
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.config import Dtype, Overlap
    from flowforge.engine.engine import Engine
    from flowforge.engine.handle import EngineSequence
    from flowforge.engine.sampling import TokenLogprobs

    Said = list[tuple[int, float]]

VOCAB_SIZE = 600
PARAMS = SamplingParams(max_tokens=6, temperature=0.8, seed=3, num_logprobs=0, ignore_eos=True)


@dataclass(frozen=True)
class Model:
    """A model directory, and what it is computed in."""

    directory: Path
    dtype: Dtype
    vocab_size: int


@pytest.fixture(scope="module", params=["auto", "int4"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """In float32, and with products in integers."""
    if find_library() is None:
        pytest.skip("there is no C compiler on this machine")
    directory, dtype = tmp_path_factory.mktemp("model"), request.param
    vocab_size = VOCAB_SIZE if dtype == "auto" else len(TOKENS)
    settings = {
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
    }
    if dtype == "auto":
        small_llama(**settings).save_pretrained(directory)
        return Model(directory, dtype, vocab_size)
    kinds = {"norm.weight": gguf.GGMLQuantizationType.F32, "weight": gguf.GGMLQuantizationType.Q4_1}
    return Model(converted(directory, kinds, **settings), dtype, vocab_size)


def engine(model: Model, num_pages: int, max_step_tokens: int, overlap: Overlap = "off") -> Engine:
    config = EngineConfig(
        dtype=model.dtype,
        num_pages=num_pages,
        page_size=4,
        max_step_tokens=max_step_tokens,
        num_threads=1 + max_step_tokens % 2,
        is_deterministic=True,
        overlap=overlap,
    )
    return engine_for(model.directory, vocab_size=model.vocab_size, config=config)


async def said(sequence: EngineSequence, into: dict[int, Said], key: int) -> None:
    tokens: Said = []
    async for update in sequence.generate(GenerationRequest(PARAMS)):
        if isinstance(update, TokensArrived):
            logprobs = [one.logprob for one in update.logprobs]
            tokens += zip(update.token_ids, logprobs, strict=True)
    into[key] = tokens


def prompts(source: random.Random, vocab_size: int) -> list[list[int]]:
    """Some with beginnings in common, one of a single token, one longer than a tile."""
    stem = [source.randrange(vocab_size) for _ in range(source.randrange(5, 60))]
    found = [[source.randrange(vocab_size)]]
    for _ in range(5):
        kept = stem[: source.randrange(len(stem))]
        own = [source.randrange(vocab_size) for _ in range(source.randrange(1, 40))]
        found.append(kept + own)
    return found


async def alone(model: Model, texts: list[list[int]]) -> dict[int, Said]:
    """What each text says on an engine with nothing else in it."""
    results: dict[int, Said] = {}
    for idx, text in enumerate(texts):
        async with engine(model, 64, 512) as fresh:
            await said(fresh.open(text), results, idx)
    return results


async def check_mixes(model: Model, seed: int, num_mixes: int) -> None:
    source = random.Random(seed)
    texts = prompts(source, model.vocab_size)
    expected = await alone(model, texts)
    # A small pool, so that some are evicted and computed again; odd chunks.
    num_pages, max_step_tokens = source.choice([34, 200]), source.choice([7, 16, 33, 512])
    overlap: Overlap = source.choice(["off", "on"])
    async with engine(model, num_pages, max_step_tokens, overlap) as mixed:
        for _ in range(num_mixes):
            found: dict[int, Said] = {}
            chosen = [idx for idx in range(len(texts)) if source.random() < 0.6] or [0]
            async with anyio.create_task_group() as tasks:
                for idx in chosen:
                    sequence = mixed.open(texts[idx])
                    if source.random() < 0.3:
                        sequence = await sequence.fork()
                    tasks.start_soon(said, sequence, found, idx)
                    if source.random() < 0.5:
                        await anyio.lowlevel.checkpoint()
            assert {idx: expected[idx] for idx in chosen} == found


async def check_scores(model: Model, overlap: Overlap, seed: int) -> None:
    source = random.Random(seed)
    texts = prompts(source, model.vocab_size)[1:]
    async with engine(model, 200, 512) as fresh:
        expected = [await fresh.open(text[:1]).score(text[1:], num_top=2) for text in texts]
    found: dict[tuple[int, int], tuple[TokenLogprobs, ...]] = {}

    async def score(mixed: Engine, idx: int, start: int) -> None:
        text = texts[idx]
        sequence = mixed.open(text[:start])
        if source.random() < 0.5:
            # From the logits that it leaves behind the first token is scored.
            await sequence.prefill()
        fork = await sequence.fork()
        found[idx, start] = await fork.score(text[start:], num_top=2)

    async with engine(model, 200, source.choice([7, 16, 512]), overlap) as mixed:
        for _ in range(4):
            async with anyio.create_task_group() as tasks:
                for idx in source.choices(range(len(texts)), k=4):
                    start = source.randrange(1, len(texts[idx]))
                    tasks.start_soon(score, mixed, idx, start)
                    tasks.start_soon(said, mixed.open(texts[idx]), {}, idx)
    for (idx, start), scores in found.items():
        assert expected[idx][start - 1 :] == scores


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("seed", range(2))
async def test_scores_of_prompts_have_the_same_bits_in_every_mix(
    model: Model, overlap: Overlap, seed: int
) -> None:
    await check_scores(model, overlap, seed)


@pytest.mark.by_hand
@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("seed", range(100, 150))
async def test_scores_have_the_same_bits_in_four_hundred_mixes(
    model: Model, overlap: Overlap, seed: int
) -> None:
    await check_scores(model, overlap, seed)


@pytest.mark.parametrize("seed", range(3))
async def test_results_have_the_same_bits_in_every_mix(model: Model, seed: int) -> None:
    await check_mixes(model, seed, 5)


@pytest.mark.by_hand
@pytest.mark.parametrize("seed", range(100, 150))
async def test_results_have_the_same_bits_in_five_hundred_mixes(model: Model, seed: int) -> None:
    await check_mixes(model, seed, 10)


@pytest.mark.parametrize(
    ("settings", "config", "reason"),
    [
        ({}, {"dtype": "bfloat16"}, "needs float32 arithmetic, got bfloat16"),
        ({"hidden_size": 48}, {}, "a matrix of 48 columns"),
        ({"head_dim": 12}, {}, "cannot be attended to|a matrix of 48 columns"),
    ],
)
async def test_what_cannot_be_deterministic_is_refused(
    settings: dict[str, int], config: dict[str, str], reason: str, tmp_path: Path
) -> None:
    if find_library() is None:
        pytest.skip("there is no C compiler on this machine")
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4} | settings
    model = random_model(
        "Llama", vocab_size=120, num_hidden_layers=1, num_key_value_heads=2, pad_token_id=0, **shape
    )
    model.save_pretrained(tmp_path)
    options = EngineConfig(num_pages=8, is_deterministic=True, **config)  # type: ignore[arg-type]

    with pytest.raises(EngineError, match=reason) as caught:
        async with engine_for(tmp_path, vocab_size=120, config=options):
            pass

    assert "EN234" == caught.value.code
