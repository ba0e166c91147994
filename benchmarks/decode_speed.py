"""Decoding and prefill of the default model against transformers, in one run, taken in turns.

    python benchmarks/decode_speed.py [--rounds 5] [--steps 6] [--context 256] [--prompt 1024]
        [--streams 1,4,16] [--threads N] [--seconds 200]

Engines of dtype auto and float32; transformers in bfloat16 and float32, as a bare loop over its
model with its cache, which is what its generate does and less. Every stream has a context of its
own. Figures are medians over rounds; none begins after --seconds. Runs that were made:
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from contextlib import AsyncExitStack
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import engine_for
from flowforge.engine.model_store import resolve_model
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.config import Dtype
    from flowforge.engine.engine import Engine
    from flowforge.engine.handle import EngineSequence

VOCAB_SIZE = 49_152


class Contestant(Protocol):
    """Who is measured; decode and prefill answer with seconds."""

    async def prepare(self, num_streams: int, context_len: int) -> None:
        """Compute the contexts that are decoded behind."""
        ...

    async def decode(self, num_streams: int, num_steps: int) -> float:
        """Write tokens of the first streams, `num_steps` each, and forget them."""
        ...

    async def prefill(self, prompt_len: int) -> float:
        """A prompt that nobody has seen."""
        ...


class OnEngine:
    """FlowForge's engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._random = random.Random(1)
        self._streams: list[EngineSequence] = []
        self._context_len = 0

    async def prepare(self, num_streams: int, context_len: int) -> None:
        """See `Contestant`."""
        self._streams = [self._open(context_len) for _ in range(num_streams)]
        self._context_len = context_len
        for stream in self._streams:
            await stream.prefill()

    async def decode(self, num_streams: int, num_steps: int) -> float:
        """See `Contestant`."""
        streams = self._streams[:num_streams]
        started_at = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(_write, stream, num_steps)
        taken_s = time.perf_counter() - started_at
        for stream in streams:
            stream.truncate(self._context_len)
        return taken_s

    async def prefill(self, prompt_len: int) -> float:
        """See `Contestant`."""
        prompt = self._open(prompt_len)
        started_at = time.perf_counter()
        await prompt.prefill()
        taken_s = time.perf_counter() - started_at
        await prompt.close()
        return taken_s

    def _open(self, num_tokens: int) -> EngineSequence:
        return self._engine.open(_tokens(self._random, num_tokens))


class OnTransformers:
    """transformers' model and cache, without the rest of its generate."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
        self._random = random.Random(1)

    @torch.inference_mode()
    async def prepare(self, num_streams: int, context_len: int) -> None:
        """See `Contestant`; the context of one stream is copied for the others."""
        prompt = torch.tensor([_tokens(self._random, context_len)])
        cache: Any = self._model(prompt, use_cache=True).past_key_values
        self._layers = [(layer.keys, layer.values) for layer in cache.layers]

    @torch.inference_mode()
    async def decode(self, num_streams: int, num_steps: int) -> float:
        """See `Contestant`."""
        cache = DynamicCache()
        for idx, (keys, values) in enumerate(self._layers):
            streams = (num_streams, 1, 1, 1)
            cache.update(keys.repeat(streams), values.repeat(streams), idx)
        ids = torch.full((num_streams, 1), 1000)
        started_at = time.perf_counter()
        for _ in range(num_steps):
            output = self._model(ids, past_key_values=cache, use_cache=True)
            ids = output.logits[:, -1:].argmax(-1)
        return time.perf_counter() - started_at

    @torch.inference_mode()
    async def prefill(self, prompt_len: int) -> float:
        """See `Contestant`."""
        prompt = torch.tensor([_tokens(self._random, prompt_len)])
        started_at = time.perf_counter()
        self._model(prompt, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - started_at


async def measure(arguments: argparse.Namespace) -> None:
    """All contestants in turn, round by round, and a table."""
    directory = resolve_model(None).directory
    streams = [int(number) for number in arguments.streams.split(",")]
    async with AsyncExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        dtypes: tuple[Dtype, ...] = ("auto", "float32")
        for dtype in dtypes:
            config = EngineConfig(dtype=dtype, num_pages=600, num_threads=arguments.threads)
            engine = engine_for(directory, vocab_size=VOCAB_SIZE, config=config)
            contestants[f"engine, {dtype}"] = OnEngine(await stack.enter_async_context(engine))
            print(engine.statistics().compute)
        for name in ("bfloat16", "float32"):
            contestant = OnTransformers(directory, getattr(torch, name))
            contestants[f"transformers, {name}"] = contestant
        seconds = await _rounds(contestants, streams, arguments)
    threads = torch.get_num_threads() if arguments.threads is None else arguments.threads
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, ", end="")
    print(f"{threads} threads, load {os.getloadavg()[0]:.1f}; tokens/s, medians of ", end="")
    num_rounds = len(next(iter(seconds.values())))
    print(f"{num_rounds}, context {arguments.context}, prompt {arguments.prompt}")
    columns = [*(f"{number} streams" for number in streams), "prefill"]
    print(f"| {'':23} | " + " | ".join(columns) + " |")
    for name in contestants:
        speeds = [
            number * arguments.steps / median(seconds[name, str(number)]) for number in streams
        ]
        speeds.append(arguments.prompt / median(seconds[name, "prefill"]))
        print(f"| {name:23} | " + " | ".join(f"{speed:9.1f}" for speed in speeds) + " |")


async def _rounds(
    contestants: dict[str, Contestant], streams: list[int], arguments: argparse.Namespace
) -> dict[tuple[str, str], list[float]]:
    seconds: dict[tuple[str, str], list[float]] = {}
    ends_at = time.perf_counter() + arguments.seconds
    for contestant in contestants.values():
        await contestant.prepare(max(streams), arguments.context)
    for round_idx in range(arguments.rounds + 1):
        if round_idx > 1 and time.perf_counter() > ends_at:
            break
        for name, contestant in contestants.items():
            taken = {
                str(number): await contestant.decode(number, arguments.steps) for number in streams
            }
            taken["prefill"] = await contestant.prefill(arguments.prompt)
            for what, taken_s in taken.items():
                if round_idx > 0:  # the first warms up
                    seconds.setdefault((name, what), []).append(taken_s)
    return seconds


async def _write(stream: EngineSequence, num_steps: int) -> None:
    params = SamplingParams(max_tokens=num_steps, ignore_eos=True)
    async for _ in stream.generate(GenerationRequest(params)):
        pass


def _tokens(source: random.Random, num_tokens: int) -> list[int]:
    return [source.randrange(100, 40_000) for _ in range(num_tokens)]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=200)
    anyio.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
