"""The whole engine under load: thousands of requests on a real model in a pool that is too small.

    python benchmarks/soak_engine.py [--requests 2000] [--seed 1] [--pages 40] [--model DIR]

Requests of random length come in at random; some are forked in the middle, some are left by their
reader, some end at EOS. Free pages are filled with NaN, so a wrong read cannot pass. The model
counts: its prompts are runs of numbers, and each answer is compared with the answer to the same
prompt alone in a large pool. Ends with an AssertionError for a wrong answer, a page that is held,
or memory that grew. Without --model the default model is used. Runs that were made:
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import engine_for
from flowforge.engine.model_store import resolve_model
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, TokensArrived
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from flowforge.engine.engine import Engine
    from flowforge.engine.handle import EngineSequence

NUM_PROMPTS = 40
MOST_TOKENS = 12
NUM_CLIENTS = 16


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Runs of numbers: 1, 2, 3, … from different starts and of different lengths."""
    made = []
    for number in range(NUM_PROMPTS):
        first, length = 1 + number % 7, 4 + number % 23
        text = ", ".join(str(first + step) for step in range(length)) + ","
        made.append(tokenizer.encode_completion(text))
    return made


async def answer(sequence: EngineSequence, max_tokens: int, *, leave_after: int = 0) -> list[int]:
    """Greedy tokens; leave_after: go away after that many updates (0: stay)."""
    before, num_updates = len(sequence.tokens), 0
    request = GenerationRequest(SamplingParams(max_tokens=max_tokens))
    async with aclosing(sequence.generate(request)) as updates:
        async for update in updates:
            num_updates += isinstance(update, TokensArrived)
            if leave_after and num_updates >= leave_after:
                break
    return sequence.tokens[before:]


class Soak:
    """Clients that send requests until there are none left."""

    def __init__(self, engine: Engine, expected: dict[int, list[int]], seed: int) -> None:
        self._engine = engine
        self._expected = expected
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()

    async def client(self, all_prompts: list[list[int]], num_requests: int) -> None:
        """Send requests one after another."""
        for _ in range(num_requests):
            number = self._random.randrange(len(all_prompts))
            max_tokens = self._random.randint(1, MOST_TOKENS)
            sequence = self._engine.open(all_prompts[number])
            try:
                await self._one(sequence, number, max_tokens)
            finally:
                await sequence.close()

    async def _one(self, sequence: EngineSequence, number: int, max_tokens: int) -> None:
        expected = self._expected[number]
        kind = self._random.choice(["whole", "whole", "left", "forked"])
        self.counts[kind] += 1
        leave_after = self._random.randint(1, max_tokens) if kind == "left" else 0
        found = await answer(sequence, max_tokens, leave_after=leave_after)
        assert expected[: len(found)] == found, f"prompt {number}: {found} is not {expected}"
        if kind == "left":
            return
        assert len(found) == min(max_tokens, len(expected)), f"prompt {number}: tokens are missing"
        if kind == "forked" and len(found) == max_tokens < len(expected):
            child = await sequence.fork()
            try:
                rest = await answer(child, len(expected) - max_tokens)
            finally:
                await child.close()
            assert expected[max_tokens:] == rest, f"prompt {number}: a fork went another way"


def peak_kib() -> int:
    """Most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def run(directory: Path, num_requests: int, seed: int, num_pages: int) -> None:
    """The answers alone first, then the load."""
    tokenizer = Tokenizer.from_directory(directory)
    all_prompts = prompts(tokenizer)
    alone: dict[int, list[int]] = {}
    async with engine_for(directory, vocab_size=tokenizer.vocab_size) as engine:
        for number, prompt in enumerate(all_prompts):
            sequence = engine.open(prompt)
            alone[number] = await answer(sequence, MOST_TOKENS)
            await sequence.close()
    config = EngineConfig(num_pages=num_pages, max_running=8, max_step_tokens=64, is_debug=True)
    async with engine_for(directory, vocab_size=tokenizer.vocab_size, config=config) as engine:
        soak = Soak(engine, alone, seed)
        started_s, first_kib = time.perf_counter(), peak_kib()
        async with anyio.create_task_group() as tasks:
            for _ in range(NUM_CLIENTS):
                tasks.start_soon(soak.client, all_prompts, num_requests // NUM_CLIENTS)
        await engine.check_invariants()
        statistics = await engine.settle()
        grown_kib = peak_kib() - first_kib
        assert statistics.kv.pages_held == 0, "pages are held after the end"
        assert grown_kib < 200_000, f"memory grew by {grown_kib} KiB"
    print(f"{num_requests} requests, seed {seed}, {num_pages} pages: all answers right")
    print(f"  {time.perf_counter() - started_s:.0f} s, peak memory grew by {grown_kib} KiB")
    print(f"  {dict(soak.counts)}")
    print(f"  {statistics}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pages", type=int, default=40)
    parser.add_argument("--model", type=Path)
    arguments = parser.parse_args()
    directory = arguments.model or resolve_model(None, route="wheel").directory
    anyio.run(run, directory, arguments.requests, arguments.seed, arguments.pages)


if __name__ == "__main__":
    main()
