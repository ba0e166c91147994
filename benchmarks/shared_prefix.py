"""Decode steps of branches over a shared prefix, with and without shared reads, in one run.

    python benchmarks/shared_prefix.py [--branches 32] [--prefix 2048] [--suffix 128] [--steps 7]
        [--sweep]

One engine core holds the branches; its steps are computed in turn by runners that share reads or
not, by torch, by the compiled kernel layer by layer, or by one call for all layers; figures are
medians. --sweep looks for the crossover:
branches and prefixes from small to large. Runs that were made: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from flowforge.engine.attention.backends import choose_backend
from flowforge.engine.attention.compiled import CompiledAttention, find_attention_library
from flowforge.engine.attention.paged import PagedAttention
from flowforge.engine.core import EngineCore
from flowforge.engine.forward import ForwardPass
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.kv.store import KvStore
from flowforge.engine.model_interface import ModelLimits
from flowforge.engine.model_store import resolve_model
from flowforge.engine.models.compiled_layers import compile_layers
from flowforge.engine.models.config import read_model_config
from flowforge.engine.models.decoder import Decoder
from flowforge.engine.models.weights import load_weights
from flowforge.engine.runner import ModelRunner
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.scheduler import SchedulerLimits
from flowforge.engine.sequence import GenerationRequest, SequenceId

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.engine.config import SharedAttention
    from flowforge.engine.model_interface import LaunchedStep
    from flowforge.engine.native.attention_library import AttentionLibrary
    from flowforge.engine.sequence import Update
    from flowforge.engine.step_plan import StepPlan

P = ParamSpec("P")
T = TypeVar("T")

PAGE_SIZE = 16
NAMESPACE = Namespace()


@dataclass(frozen=True)
class Shape:
    """A step: so many branches, each with a suffix of its own behind a common prefix."""

    branches: int
    prefix: int
    suffix: int


@dataclass(frozen=True)
class Side:
    """A way to attend; without a kernel by torch. decoder: with a call for all layers or not."""

    shared: SharedAttention
    kernel: AttentionLibrary | None
    decoder: Decoder


@dataclass(frozen=True)
class Timed:
    """Medians, milliseconds: whole steps, and the part of them in attention."""

    step_ms: float
    attention_ms: float
    rows: int


class Sink:
    """Takes updates and forgets them."""

    def put(self, update: Update) -> None:
        """Nobody reads them."""


class AttentionClock:
    """Adds up the time in attention."""

    def __init__(self) -> None:
        self.seconds = 0.0
        # By setattr, which type checkers let replace a method.
        setattr(PagedAttention, "attend", self._timed(PagedAttention.attend))  # noqa: B010
        setattr(CompiledAttention, "attend", self._timed(CompiledAttention.attend))  # noqa: B010

    def _timed(self, function: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            started_at = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started_at

        return timed


class Switch:
    """A runner that hands each step to the one of its runners whose turn it is."""

    def __init__(self, runners: list[ModelRunner]) -> None:
        self.runners = runners
        self.turn = 0

    @property
    def num_rows_read(self) -> int:
        """See `StepRunner`."""
        return sum(runner.num_rows_read for runner in self.runners)

    @property
    def draws_tokens(self) -> bool:
        """See `StepRunner`."""
        return False

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """See `StepRunner`."""
        return self.runners[self.turn].launch(plan)


class Branches:
    """An engine core whose branches all decode."""

    def __init__(self, decoder: Decoder, shape: Shape, num_steps: int, sides: list[Side]) -> None:
        config = decoder.config
        most = shape.prefix + (shape.branches + 1) * (shape.suffix + num_steps + 2 * PAGE_SIZE)
        store = KvStore(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            num_pages=-(-most // PAGE_SIZE) + shape.branches,
            page_size=PAGE_SIZE,
            dtype=decoder.dtype,
            device=decoder.device,
        )
        kv = KvCache(store.rows.shape[3] // PAGE_SIZE, PAGE_SIZE)
        self.switch = Switch(
            [
                ModelRunner(
                    ForwardPass(
                        side.decoder, store, choose_backend(store, side.shared, side.kernel)
                    )
                )
                for side in sides
            ]
        )
        limits = SchedulerLimits(max_step_tokens=512, max_running=shape.branches)
        model = ModelLimits(config.vocab_size, config.max_context_len, frozenset())
        self.core = EngineCore(self.switch, kv, limits, model, time.perf_counter)
        self._start(shape, num_steps)

    def step(self) -> float:
        """Seconds of one decode step."""
        started_at = time.perf_counter()
        self.core.step()
        return time.perf_counter() - started_at

    def _start(self, shape: Shape, num_steps: int) -> None:
        parent = SequenceId(0)
        self.core.open(parent, NAMESPACE)
        self.core.append(parent, [1000 + idx % 7000 for idx in range(shape.prefix)])
        self.core.prefill(parent, Sink())
        while self.core.has_work:
            self.core.step()
        request = GenerationRequest(SamplingParams(max_tokens=num_steps + 1, ignore_eos=True))
        for branch in range(1, shape.branches + 1):
            child = SequenceId(branch)
            self.core.fork(parent, child)
            self.core.append(child, [100 * branch + idx for idx in range(shape.suffix)])
            self.core.generate(child, request, Sink())
        wanted = self.core.statistics().generated_tokens + shape.branches
        while self.core.statistics().generated_tokens < wanted:
            self.core.step()


def measure(
    decoder: Decoder,
    shape: Shape,
    num_steps: int,
    clock: AttentionClock,
    sides: list[Side],
) -> list[Timed]:
    """All sides, step by step in turn."""
    # The last branch may begin some steps after the first.
    most = len(sides) * num_steps + shape.branches + 2
    branches = Branches(decoder, shape, most, sides)
    steps: list[list[float]] = [[] for _ in sides]
    attention: list[list[float]] = [[] for _ in sides]
    before = [runner.num_rows_read for runner in branches.switch.runners]
    for _ in range(num_steps):
        for turn, (of_steps, of_attention) in enumerate(zip(steps, attention, strict=True)):
            branches.switch.turn, clock.seconds = turn, 0.0
            of_steps.append(branches.step())
            of_attention.append(clock.seconds)
    rows = [
        (runner.num_rows_read - old) // num_steps
        for runner, old in zip(branches.switch.runners, before, strict=True)
    ]
    return [
        Timed(1e3 * median(one), 1e3 * median(two), read)
        for one, two, read in zip(steps, attention, rows, strict=True)
    ]


def report(shape: Shape, name: str, on: Timed, off: Timed) -> None:
    """One line."""
    attention = ""  # of one call for all layers it is not known
    if on.attention_ms > 0:
        ratio = off.attention_ms / on.attention_ms
        attention = (
            f"attention {off.attention_ms:7.1f} -> {on.attention_ms:6.1f} ms ({ratio:.2f}x), "
        )
    print(
        f"{shape.branches:3} branches, prefix {shape.prefix:5}, suffix {shape.suffix:4}, {name}: "
        f"step {off.step_ms:7.1f} -> {on.step_ms:7.1f} ms ({off.step_ms / on.step_ms:.2f}x), "
        f"{attention}rows {off.rows} -> {on.rows}",
        flush=True,
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--branches", type=int, default=32)
    parser.add_argument("--prefix", type=int, default=2048)
    parser.add_argument("--suffix", type=int, default=128)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    import torch

    directory = resolve_model(None).directory
    config = read_model_config(directory)
    loaded = load_weights(directory, config, kernels="measured")
    single = Decoder(config, loaded.weights, loaded.kernel_choices)
    whole = Decoder(
        config, loaded.weights, loaded.kernel_choices, compile_layers(config, loaded.weights)
    )
    kernel = find_attention_library()
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, load {load}, {whole!r}")
    clock = AttentionClock()
    shapes = [Shape(arguments.branches, arguments.prefix, arguments.suffix)]
    if arguments.sweep:
        shapes = [Shape(b, p, 32) for b in (2, 4, 8) for p in (64, 128, 256, 512, 1024)]
    for shape in shapes:
        sides = [Side("auto", None, single), Side("off", None, single)]
        if kernel is not None:
            sides += [Side(shared, kernel, single) for shared in ("auto", "off")]
            sides += [Side(shared, kernel, whole) for shared in ("auto", "off")]
        timed = measure(whole, shape, arguments.steps, clock, sides)
        report(shape, "torch", *timed[:2])
        if kernel is not None:
            report(shape, "kernel", *timed[2:4])
            report(shape, "kernel from torch off", timed[2], timed[1])
            report(shape, "one call", *timed[4:])
            report(shape, "one call from torch off", timed[4], timed[1])


if __name__ == "__main__":
    main()
