"""What counting costs: the share of a step's time that meter and snapshots take, in one run.

python benchmarks/statistics_cost.py [--branches 16] [--steps 60] [--prompt 512]
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import anyio

from flowforge.engine.config import EngineConfig
from flowforge.engine.core import EngineCore
from flowforge.engine.loading import engine_for
from flowforge.engine.meter import Meter
from flowforge.engine.model_store import resolve_model
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.engine.handle import EngineSequence

P = ParamSpec("P")
T = TypeVar("T")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--branches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--prompt", type=int, default=512)
    arguments = parser.parse_args()
    anyio.run(measure, arguments.branches, arguments.steps, arguments.prompt)


async def measure(num_branches: int, num_steps: int, prompt_len: int) -> None:
    """Fork a prompt into branches that all generate; the parts counted are wrapped in a clock."""
    spent = {"counting": 0.0}

    def timed(function: Callable[P, T]) -> Callable[P, T]:
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            started_at = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent["counting"] += time.perf_counter() - started_at

        return wrapper

    for name in ("planned", "computed", "sampled", "timed", "ended"):
        setattr(Meter, name, timed(getattr(Meter, name)))
    setattr(EngineCore, "statistics", timed(EngineCore.statistics))  # noqa: B010 - as above

    directory = resolve_model(None).directory
    vocab_size = Tokenizer.from_directory(directory).vocab_size
    request = GenerationRequest(SamplingParams(max_tokens=num_steps, ignore_eos=True))

    async def write(sequence: EngineSequence) -> None:
        async for _ in sequence.generate(request):
            pass

    async with engine_for(directory, vocab_size=vocab_size, config=EngineConfig()) as engine:
        parent = engine.open([1000 + idx % 7000 for idx in range(prompt_len)])
        await parent.prefill()
        branches = [await parent.fork() for _ in range(num_branches)]
        before, spent["counting"] = await engine.settle(), 0.0
        async with anyio.create_task_group() as tasks:
            for idx, branch in enumerate(branches):
                branch.append([20 + idx])
                tasks.start_soon(write, branch)
        after = await engine.settle()
    step_s = after.steps.step_s.total_s - before.steps.step_s.total_s
    steps = after.num_steps - before.num_steps
    reads = after.since(before).reads
    print(f"{num_branches} branches over {prompt_len} tokens, {steps} steps")
    print(f"a step: {1e3 * step_s / steps:.1f} ms, host {1e3 * after.steps.host_s / steps:.2f} ms")
    print(f"counting: {1e6 * spent['counting'] / steps:.0f} µs a step, ", end="")
    print(f"{spent['counting'] / step_s:.3%} of it")
    print(f"KV rows: {reads.logical_rows} attended, {reads.distinct_rows} distinct, ", end="")
    print(f"ratio {reads.ratio:.2f}")


if __name__ == "__main__":
    main()
