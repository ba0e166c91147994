"""Generations under grammars on the default model, at a temperature that tries the masks.

For each grammar: NUM texts at temperature 1.5, each ended by the model or cut at MAX_TOKENS. Every
text that ended must be one that lark parses. Prints a line for each grammar as it is done.

    python benchmarks/grammar_generations.py [NUM [MAX_TOKENS [GRAMMAR…]]]
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from constraint_cases import grammar_cases

from flowforge.backends.answer_grammars import load_grammar, value_of_answer
from flowforge.backends.engine import open_engine_backend
from flowforge.backends.protocol import GenerateRequest, GenerationDone, Sampling
from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from flowforge.backends.engine import EngineBackend
    from flowforge.language.answer_specs import GrammarSpec

SEED = 1
BATCH = 25


async def generate(
    backend: EngineBackend, name: str, spec: GrammarSpec, seed: int, max_tokens: int
) -> GenerationDone:
    """One text."""
    conversation = await backend.open()
    conversation.add_user(f"Write an example of {name.rpartition('/')[2].replace('_', ' ')}.")
    sampling = Sampling(max_tokens=max_tokens, temperature=1.5, seed=seed)
    request = GenerateRequest(sampling=sampling, grammar=spec, label=f"{name}#{seed}")
    try:
        async for item in conversation.generate(request):
            if isinstance(item, GenerationDone):
                return item
    finally:
        await conversation.close()
    raise AssertionError("a generation ends with its result")


async def measure(backend: EngineBackend, name: str, spec: GrammarSpec, num: int, most: int) -> int:
    """The number of texts that ended and that lark refuses."""
    begun = time.perf_counter()
    await anyio.to_thread.run_sync(load_grammar, spec)
    results: dict[int, GenerationDone] = {}

    async def one(seed: int) -> None:
        results[seed] = await generate(backend, name, spec, seed, most)

    for first in range(0, num, BATCH):
        async with anyio.create_task_group() as tasks:
            for seed in range(first, min(first + BATCH, num)):
                tasks.start_soon(one, SEED * 1000 + seed)
    ended = [done.text for done in results.values() if done.finish_reason == "stop"]
    num_wrong = 0
    for text in ended:
        try:
            await anyio.to_thread.run_sync(partial(value_of_answer, spec, text))
        except WorkflowError as error:
            num_wrong += 1
            print(f"    refused: {error.message}")
    num_tokens = sum(done.usage.generated_tokens for done in results.values())
    seconds = time.perf_counter() - begun
    print(
        f"{name:26} {len(results)} texts, {len(ended)} ended, {len(ended) - num_wrong} of them "
        f"parse, {len(results) - len(ended)} cut, {num_tokens} tokens, {seconds:.0f} s",
        flush=True,
    )
    return num_wrong


async def main() -> None:
    """All grammars."""
    num = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    chosen = sys.argv[3:]
    num_wrong = 0
    async with open_engine_backend() as backend:
        for case in grammar_cases():
            if not chosen or case.name in chosen:
                num_wrong += await measure(backend, case.name, case.spec, num, most)
    print(f"{num_wrong} texts ended and were refused")


if __name__ == "__main__":
    anyio.run(main)
