"""The engine on the default model against transformers, in fp32: logits, greedy ids, golden ids."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from cached_divergence import divergences

from flowforge.engine.attention.paged import PagedAttention
from flowforge.engine.attention.reads import Span
from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import engine_for
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, TokensArrived
from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.messages import Message
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from flowforge.engine.engine import Engine
    from flowforge.engine.handle import EngineSequence

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "Here is a recipe for bread. First, mix the flour with",
    "def fibonacci(n):\n    ",
]


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(default_model_dir)


@pytest.fixture(scope="module")
def reference(default_model_dir: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(default_model_dir, dtype=torch.float32).eval()


@asynccontextmanager
async def running(directory: Path, tokenizer: Tokenizer) -> AsyncGenerator[Engine]:
    config = EngineConfig(num_pages=128, num_threads=1)
    async with engine_for(directory, vocab_size=tokenizer.vocab_size, config=config) as engine:
        yield engine


async def greedy(
    sequence: EngineSequence, max_tokens: int, *, ignore_eos: bool = True
) -> list[int]:
    before = len(sequence.tokens)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    async for _ in sequence.generate(GenerationRequest(params)):
        pass
    return sequence.tokens[before:]


@pytest.mark.parametrize("chunk_len", [1, 7, 64])
def test_logits_over_64_tokens_equal_those_of_transformers(
    default_model_dir: Path, tokenizer: Tokenizer, reference: Any, chunk_len: int
) -> None:
    text = "A radix tree keeps what was computed. " * 20
    token_ids = torch.tensor(tokenizer.encode(text)[:64])
    assert len(token_ids) == 64
    decoder = load_decoder(default_model_dir, dtype=torch.float32)
    config = decoder.config
    # Rows of the sequence start inside the store, so that slots and positions differ.
    rows = torch.full((config.num_layers, 2, config.num_kv_heads, 128, config.head_dim), torch.nan)
    parts = []
    with torch.inference_mode():
        for start in range(0, 64, chunk_len):
            stop = min(64, start + chunk_len)
            span = Span(0, stop - start, ((32, min(stop, 40)), (96, stop - 40))[: 1 + (stop > 40)])
            slots = [32 + p if p < 40 else 96 + p - 40 for p in range(start, stop)]
            attention = PagedAttention(rows, torch.tensor(slots), (span,))
            positions = torch.arange(start, stop)
            parts.append(
                decoder.logits(decoder.forward(token_ids[start:stop], positions, attention))
            )
        expected = reference(token_ids.unsqueeze(0)).logits[0]

    assert (torch.cat(parts) - expected).abs().max().item() < 1e-3


def test_in_bf16_a_cached_prefix_moves_what_comes_next_by_little(
    default_model_dir: Path, tokenizer: Tokenizer
) -> None:
    """The bound is SGLang's for its own cache; more texts and cuts: benchmarks/cached_kl.py."""
    text = "A radix tree keeps what was computed, and "
    token_ids = torch.tensor(tokenizer.encode(text * 5)[:40])
    decoder = load_decoder(default_model_dir, dtype=torch.bfloat16)

    kl = divergences(decoder, token_ids, prefix_len=16, chunk_len=5)

    assert kl.mean().item() <= 0.0025


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_greedy_ids_equal_generate_cold_warm_and_through_a_fork(
    default_model_dir: Path, tokenizer: Tokenizer, reference: Any, prompt: str
) -> None:
    prompt_ids = tokenizer.encode_completion(prompt)
    expected = reference.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids)),
        do_sample=False,
        max_new_tokens=32,
        eos_token_id=None,
        pad_token_id=2,
    )[0, len(prompt_ids) :].tolist()

    async with running(default_model_dir, tokenizer) as engine:
        cold, warm, parent = (engine.open(prompt_ids) for _ in range(3))
        assert expected == await greedy(cold, 32)
        assert expected == await greedy(warm, 32)
        await parent.prefill()
        fork = await parent.fork()
        assert expected == await greedy(fork, 32)
        statistics = await engine.settle()

    assert len(prompt_ids) == statistics.prefilled_tokens, "computed once for all three"


async def test_the_golden_answer_and_its_borders(
    default_model_dir: Path, tokenizer: Tokenizer, cases: Any
) -> None:
    """TK-040, TK-041."""
    case = next(row for row in cases("tokens") if row["id"] == "TK-040")
    template = ChatTemplate.from_directory(default_model_dir, tokenizer)
    prompt = template.render([Message(**m) for m in case["input"]["messages"]])
    assert case["expected"]["prompt_tokens"] == len(prompt)

    async with running(default_model_dir, tokenizer) as engine:
        for max_tokens in (24, 13, 12, 11):
            sequence = engine.open(prompt)
            ids = await greedy(sequence, max_tokens, ignore_eos=False)
            assert case["expected"]["ids"][:max_tokens] == ids
            assert case["expected"]["text"] == tokenizer.decode(ids)


async def test_golden_continuations_hold(default_model_dir: Path, tokenizer: Tokenizer) -> None:
    """ML-019: tensor order, quantised blocks and Q/K rows of the GGUF are read right."""
    expected = {
        "The capital of France is": [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40],
        "1, 2, 3, 4, 5,": [216, 38, 28, 216, 39, 28, 216, 40, 28, 216, 41, 28, 216, 33, 32, 28],
    }
    async with running(default_model_dir, tokenizer) as engine:
        for prompt, ids in expected.items():
            sequence = engine.open(tokenizer.encode_completion(prompt))
            assert ids == await greedy(sequence, len(ids))


async def test_a_whole_cached_prompt_gives_the_golden_ids_twice(
    default_model_dir: Path, tokenizer: Tokenizer
) -> None:
    """KV-001: 16 tokens, exactly one page."""
    template = ChatTemplate.from_directory(default_model_dir, tokenizer)
    prompt = template.render([Message("system", "S"), Message("user", "q")])
    assert len(prompt) == 16

    async with running(default_model_dir, tokenizer) as engine:
        for _ in range(2):
            sequence = engine.open(prompt)
            assert [504, 2988, 288, 451, 1962, 314, 42, 216] == await greedy(sequence, 8)


async def test_children_of_a_fork_inside_a_page_write_apart(
    default_model_dir: Path, tokenizer: Tokenizer
) -> None:
    """KV-016: all three at once."""
    base_ids = tokenizer.encode_completion("Here is the English alphabet: A B C D E F G H I J K")
    assert len(base_ids) == 17
    golden = {
        "": [450, 372, 442, 492, 377, 1606],
        " L M": [442, 492, 377, 1606, 428, 334],
        " 1 2 3": [216, 36, 216, 37, 216, 38],
    }
    async with running(default_model_dir, tokenizer) as engine:
        base = engine.open(base_ids)
        await base.prefill()
        streams = {}
        for more in golden:
            child = await base.fork()
            child.append(tokenizer.encode(more))
            request = GenerationRequest(SamplingParams(max_tokens=6))
            streams[more] = child.generate(request)
        outputs: dict[str, list[int]] = {more: [] for more in golden}
        # Taken one update at a time in turn: all three generations are in the engine together.
        async with AsyncExitStack() as stack:
            for stream in streams.values():
                await stack.enter_async_context(aclosing(stream))
            for _ in range(7):
                for more, stream in streams.items():
                    update = await anext(stream)
                    if isinstance(update, TokensArrived):
                        outputs[more] += update.token_ids

        assert golden == outputs
        await engine.check_invariants()


@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-12, 1e-40])
async def test_tiny_temperatures_are_greedy(
    default_model_dir: Path, tokenizer: Tokenizer, temperature: float
) -> None:
    """TK-039."""
    async with running(default_model_dir, tokenizer) as engine:
        sequence = engine.open(tokenizer.encode_completion("1, 2, 3, 4, 5,"))
        params = SamplingParams(max_tokens=16, temperature=temperature)
        before = len(sequence.tokens)
        async for _ in sequence.generate(GenerationRequest(params)):
            pass

    assert tokenizer.decode(sequence.tokens[before:]) == " 6, 7, 8, 9, 10,"


async def test_a_seed_gives_the_same_tokens_alone_and_among_strangers(
    default_model_dir: Path, tokenizer: Tokenizer
) -> None:
    """TK-046."""
    prompt = tokenizer.encode_completion("Once upon a time")
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=7)

    async def sample(engine: Engine, strangers: int) -> list[int]:
        others = [
            engine.open(tokenizer.encode_completion(PROMPTS[n])).generate(
                GenerationRequest(SamplingParams(max_tokens=40, temperature=1.0, seed=n))
            )
            for n in range(strangers)
        ]
        for other in others:
            await anext(other)
        sequence = engine.open(prompt)
        async for _ in sequence.generate(GenerationRequest(params)):
            pass
        for other in others:
            await other.aclose()
        return sequence.tokens[len(prompt) :]

    async with running(default_model_dir, tokenizer) as engine:
        alone = await sample(engine, 0)
        assert alone == await sample(engine, 3)
    other_seed = SamplingParams(max_tokens=24, temperature=1.0, seed=8)
    async with running(default_model_dir, tokenizer) as engine:
        sequence = engine.open(prompt)
        async for _ in sequence.generate(GenerationRequest(other_seed)):
            pass
    assert alone != sequence.tokens[len(prompt) :]
