"""What constraints cost and save: masks alone, and decoding with and without them.

    python benchmarks/constrained_speed.py [--rounds 4] [--tokens 64] [--batch 8]

1. Masks: the processor time of each mask along the valid instances of tests/cases/json_schemas, on
   the default model's vocabulary, as a generation meets them: started from a compiled constraint.
2. Decoding `--batch` generations at once, free and constrained, one after the other in each round:
   under a regex that never forces a token, so that both sample every token; and under a schema
   with many keys, whose forced tokens need no step. Figures are ratios within a run.

Runs that were made: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

from flowforge.backends.engine import open_engine_backend
from flowforge.engine.config import EngineConfig
from flowforge.engine.model_store import resolve_model
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationFinished, GenerationRequest
from flowforge.errors import WorkflowError
from flowforge.grammars import JsonOptions, compile_json_schema, compile_regex

if TYPE_CHECKING:
    from flowforge.backends.engine import EngineBackend
    from flowforge.grammars import CompiledConstraint, Vocabulary

CASES = Path(__file__).resolve().parents[1] / "tests" / "cases" / "json_schemas"
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


def time_masks(vocabulary: Vocabulary, backend: EngineBackend) -> list[float]:
    """Microseconds of each mask, of this thread's own work: others may be running here too."""
    times: list[float] = []
    words = np.zeros(vocabulary.num_mask_words, dtype=np.uint32)
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        try:
            options = JsonOptions(closes_objects=False)
            compiled = compile_json_schema(case["schema"], vocabulary, options)
        except WorkflowError:
            continue
        for instance in case["valid"]:
            text = json.dumps(instance, ensure_ascii=False, separators=(",", ":"))
            state = compiled.start()
            for token_id in backend.tokenizer.encode(text):
                started_at = time.thread_time_ns()
                state.fill_mask(words)
                times.append((time.thread_time_ns() - started_at) / 1e3)
                try:
                    state.advance(token_id)
                except ValueError:  # keys in another order than the schema's
                    break
    return times


async def decode(
    backend: EngineBackend, compiled: CompiledConstraint | None, args: argparse.Namespace
) -> float:
    """Seconds until all of a batch have their tokens."""
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

    started_at = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for idx in range(args.batch):
            tasks.start_soon(one, idx)
    return time.perf_counter() - started_at


async def main(args: argparse.Namespace) -> None:
    """Measure and print."""
    directory = resolve_model(None, route="wheel").directory
    async with open_engine_backend(directory, config=EngineConfig(num_threads=1)) as backend:
        vocabulary = await anyio.to_thread.run_sync(backend.constraints.vocabulary)
        times = time_masks(vocabulary, backend)
        shown = ", ".join(
            f"p{share:g} {np.percentile(times, share):.0f}" for share in (50, 90, 99, 100)
        )
        print(f"{len(times):,} masks, microseconds: {shown}")
        constraints = {
            "free": None,
            "constrained": compile_regex(NEVER_FORCES, vocabulary),
            "many keys": compile_json_schema(FORM, vocabulary),
        }
        seconds: dict[str, list[float]] = {name: [] for name in constraints}
        await decode(backend, None, args)
        for _ in range(args.rounds):
            for name, compiled in constraints.items():
                seconds[name].append(await decode(backend, compiled, args))
        least = {name: min(of_rounds) for name, of_rounds in seconds.items()}
        for name, best in least.items():
            print(f"{name}: {args.batch * args.tokens / best:.1f} tokens/s, best of {args.rounds}")
        print(f"constrained / free tokens/s: {least['free'] / least['constrained']:.3f}")
        print(f"many keys / free wall time: {least['many keys'] / least['free']:.3f}")
        print(backend.engine.statistics().masks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    anyio.run(main, parser.parse_args())
