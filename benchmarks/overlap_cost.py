"""Steps on the CPU, read at once or launched ahead: what that costs where it hides nothing.

    python benchmarks/overlap_cost.py [--rows 1 8] [--steps 120]

Two engines on the default model, in one process, take turns step by step; without guesses. Prints
the median of a step of each, their ratio, and what the host takes of a step outside the forward
pass.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

from flowforge.engine.config import EngineConfig
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.loading import load_core
from flowforge.engine.model_store import resolve_model
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, SequenceId

if TYPE_CHECKING:
    from flowforge.engine.config import Overlap
    from flowforge.engine.core import EngineCore
    from flowforge.engine.sequence import Update

VOCAB_SIZE = 49_152
PROMPT = 32
WARM_UPS = 8


class Nobody:
    """A reader."""

    def put(self, update: Update) -> None:
        """See `UpdateSink`."""


def core_with(overlap: Overlap, num_rows: int, num_steps: int) -> EngineCore:
    """An engine that writes so many texts, past their prompts."""
    directory = resolve_model(None, route="wheel").directory
    config = EngineConfig(device="cpu", speculation="off", overlap=overlap, num_pages=512)
    core = load_core(directory, vocab_size=VOCAB_SIZE, config=config)
    params = SamplingParams(
        temperature=0.8, ignore_eos=True, max_tokens=num_steps + 2 * WARM_UPS + PROMPT
    )
    for number in range(num_rows):
        sequence = SequenceId(number + 1)
        core.open(sequence, Namespace(salt=str(number)))
        core.append(sequence, [(31 * number + 7 * idx) % 40_000 + 20 for idx in range(PROMPT)])
        core.generate(sequence, GenerationRequest(params), Nobody())
    for _ in range(WARM_UPS):
        core.step()
    return core


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    for num_rows in options.rows:
        names: tuple[Overlap, ...] = ("off", "on")
        cores = {name: core_with(name, num_rows, options.steps) for name in names}
        taken: dict[Overlap, list[float]] = {name: [] for name in names}
        hosts = {name: core.statistics().steps.host_s for name, core in cores.items()}
        for number in range(options.steps):
            for name in names if number % 2 else names[::-1]:
                started_at = time.perf_counter()
                cores[name].step()
                taken[name].append(time.perf_counter() - started_at)
        medians = {name: statistics.median(times) for name, times in taken.items()}
        print(f"{num_rows} rows: on / off {medians['on'] / medians['off']:.3f}")
        for name, core in cores.items():
            host_s = (core.statistics().steps.host_s - hosts[name]) / options.steps
            ahead = core.statistics().steps.num_ahead
            print(
                f"  overlap {name}: {medians[name] * 1e3:.2f} ms a step, host {host_s * 1e3:.2f} "
                f"ms, {ahead} steps ahead"
            )


if __name__ == "__main__":
    main()
