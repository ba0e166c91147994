"""What constraints cost and save when decoding: with and without them, as ratios within a run.

    python benchmarks/constrained_speed.py [--rounds 6] [--tokens 48] [--batch 8]

Decodes `--batch` generations at once, one kind after the other in each round, in turning order:
free; under a regex that never forces a token, so that both sample every token; and under a schema
with many keys, whose forced tokens need no step. A round's ratio is of neighbours in time, and the
figure is the median of the rounds: of the clock's seconds, and of the process's processor time,
which counts the masks' thread in full and the machine's other work not at all. Runs that were made:
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio

from flowforge.backends.engine import open_engine_backend
from flowforge.engine.config import EngineConfig
from flowforge.engine.model_store import resolve_model
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationFinished, GenerationRequest
from flowforge.grammars import compile_json_schema, compile_regex

if TYPE_CHECKING:
    from flowforge.backends.engine import EngineBackend
    from flowforge.grammars import CompiledConstraint

NEVER_FORCES = "(?s:.){100000}"
KEYS = ("customer_name", "delivery_address", "order_number", "payment_method", "special_requests")
FORM: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {key: {"type": "string", "maxLength": 8} for key in KEYS},
        "required": list(KEYS),
        "additionalProperties": False,
    },
    "minItems": 50,
}


async def decode(
    backend: EngineBackend, compiled: CompiledConstraint | None, args: argparse.Namespace
) -> tuple[float, float]:
    """Seconds until all of a batch have their tokens: the clock's, and processor time."""
    prompt = backend.tokenizer.encode("Once upon a time there was a little girl who")
    params = SamplingParams(temperature=0.7, max_tokens=args.tokens, ignore_eos=True)

    async def one(idx: int) -> None:
        sequence = backend.engine.open()
        sequence.append([*prompt, 100 + idx])
        constraint = None if compiled is None else compiled.start()
        stream = sequence.generate(GenerationRequest(params, constraint))
        async with aclosing(stream):
            async for update in stream:
                if isinstance(update, GenerationFinished):
                    assert update.usage.output_tokens == args.tokens, "it ended early"
        await sequence.close()

    started_at, begun = time.perf_counter(), time.process_time()
    async with anyio.create_task_group() as tasks:
        for idx in range(args.batch):
            tasks.start_soon(one, idx)
    return time.perf_counter() - started_at, time.process_time() - begun


async def main(args: argparse.Namespace) -> None:
    """Measure and print."""
    directory = resolve_model(None, route="wheel").directory
    async with open_engine_backend(directory, config=EngineConfig(num_threads=1)) as backend:
        vocabulary = await anyio.to_thread.run_sync(backend.constraints.vocabulary)
        constraints = {
            "free": None,
            "constrained": compile_regex(NEVER_FORCES, vocabulary),
            "many keys": compile_json_schema(FORM, vocabulary),
        }
        await decode(backend, None, args)
        wall: dict[str, list[float]] = {name: [] for name in constraints}
        cpu: dict[str, list[float]] = {name: [] for name in constraints}
        for round_idx in range(args.rounds):
            order = list(constraints) if round_idx % 2 == 0 else list(constraints)[::-1]
            for name in order:
                wall_s, cpu_s = await decode(backend, constraints[name], args)
                wall[name].append(wall_s)
                cpu[name].append(cpu_s)
        for name in constraints:
            rates = [args.batch * args.tokens / statistics.median(of[name]) for of in (wall, cpu)]
            print(f"{name}: {rates[0]:.1f} tokens/s, {rates[1]:.1f} per second of processor time")
        for what, seconds in (("wall", wall), ("processor", cpu)):
            print(f"free / constrained {what} time: {ratio(seconds, 'free', 'constrained')}")
            print(f"many keys / free {what} time: {ratio(seconds, 'many keys', 'free')}")
        print(backend.engine.statistics().masks)


def ratio(seconds: dict[str, list[float]], above: str, below: str) -> str:
    """The median of the rounds' ratios, and how far they are apart."""
    ratios = [one / other for one, other in zip(seconds[above], seconds[below], strict=True)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--batch", type=int, default=8)
    anyio.run(main, parser.parse_args())
