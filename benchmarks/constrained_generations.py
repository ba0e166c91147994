"""Fifty hot generations of each accepted schema on the default model: all must parse and validate.

    python benchmarks/constrained_generations.py [--samples 50] [--max-tokens 80]

The schemas are those of tests/cases/json_schemas that no keyword keeps from being enforced. Half of
the generations end by `on_cut: fail`, half by `on_cut: close`. One that ends by itself, or that was
closed, has to parse and validate; one that was cut is told as cut, and never validates by
accident. Ends with an AssertionError otherwise. Runs that were made: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from constraint_cases import is_accepted, schema_cases

from flowforge.backends.engine import open_engine_backend
from flowforge.backends.protocol import GenerateRequest, GenerationDone, Sampling
from flowforge.engine.config import EngineConfig
from flowforge.engine.model_store import resolve_model
from flowforge.grammars import validate_json
from flowforge.language.answer_specs import AnswerOptions

if TYPE_CHECKING:
    from flowforge.backends.engine import EngineBackend
    from flowforge.backends.protocol import Conversation


async def generate(
    conversation: Conversation, schema: Any, sampling: Sampling, options: AnswerOptions
) -> GenerationDone:
    """One generation to its end."""
    request = GenerateRequest(sampling, json_schema=schema, options=options)
    async with aclosing(conversation.generate(request)) as items:
        async for item in items:
            if isinstance(item, GenerationDone):
                return item
    raise AssertionError("a generation ends")


async def sample_schema(
    backend: EngineBackend, name: str, schema: Any, args: argparse.Namespace
) -> Counter[str]:
    """All generations of one schema at once, from one prompt."""
    counts: Counter[str] = Counter()
    parent = await backend.open(system="You answer in JSON.")
    parent.add_user(f"Give an example of {name.rpartition('__')[2]}.")

    async def one(idx: int) -> None:
        fork = await parent.fork()
        try:
            sampling = Sampling(args.max_tokens, args.temperature, seed=idx)
            options = AnswerOptions(on_cut="close" if idx % 2 else "fail")
            done = await generate(fork, schema, sampling, options)
        finally:
            await fork.close()
        counts[done.finish_reason] += 1
        counts["tokens"] += done.usage.generated_tokens
        if done.finish_reason != "length":
            validate_json(done.text, schema)
        elif idx % 2:
            counts["not closed"] += 1

    async with anyio.create_task_group() as tasks:
        for idx in range(args.samples):
            tasks.start_soon(one, idx)
    await parent.close()
    return counts


async def main(args: argparse.Namespace) -> None:
    """Run all schemas one after another and print a line for each."""
    directory = resolve_model(None, route="wheel").directory
    whole: Counter[str] = Counter()
    started_at = time.monotonic()
    async with open_engine_backend(directory, config=EngineConfig(num_threads=1)) as backend:
        accepted = [case for case in schema_cases() if is_accepted(case.schema)]
        for case in accepted[args.skip :]:
            counts = await sample_schema(backend, case.name, case.schema, args)
            whole += counts
            print(f"{case.name}: {dict(counts)}", flush=True)
        masks = backend.engine.statistics().masks
    seconds = time.monotonic() - started_at
    print(f"all: {dict(whole)}, {seconds:.0f} s, masks {masks}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--max-tokens", type=int, default=80)
    parser.add_argument("--skip", type=int, default=0, help="schemas that were run before")
    anyio.run(main, parser.parse_args())
