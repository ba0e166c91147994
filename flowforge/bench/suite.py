"""Workloads under policies, in turn: what `flowforge bench workflows` does."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from flowforge.bench.figures import Counts, Times, counts_of, times_of
from flowforge.bench.program_calls import count_tokens, with_unlike_tokens
from flowforge.bench.program_run import RunRules, run_programs
from flowforge.bench.quiet import Quietness, QuietnessMeter, machine_line
from flowforge.bench.random_model import SHAPES, write_random_model
from flowforge.bench.workflow_run import WorkflowRules, run_workflows
from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import load_core

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from flowforge.bench.baselines import Baseline
    from flowforge.bench.program_calls import Workload
    from flowforge.bench.program_run import ProgramRun
    from flowforge.engine.core import EngineCore


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model directory. vocab_size: ids that prompts are made of and that are sampled.

    At most `token_text.MOST_IDS`.
    """

    directory: Path
    vocab_size: int


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """max_running: sequences in one step. repeats: timed runs of each, 0 to count in one run only.

    num_pages: of the pool; None for enough that nothing is evicted. page_size: tokens a page.
    temperature: of all calls. is_deterministic: as in `EngineConfig`.
    """

    max_running: int = 32
    max_step_tokens: int = 512
    repeats: int = 5
    num_pages: int | None = None
    page_size: int = 16
    temperature: float = 1.0
    is_deterministic: bool = False

    @classmethod
    def scaled(cls, divisor: int, *, repeats: int, num_pages: int | None) -> SuiteOptions:
        """For a workload whose lengths are divided: so are pages, and the tokens of a step."""
        whole = cls()
        return cls(
            max_step_tokens=max(whole.max_step_tokens // divisor, whole.max_running),
            repeats=repeats,
            num_pages=num_pages,
            page_size=max(1, whole.page_size // divisor),
        )


@dataclass(frozen=True, slots=True)
class Result:
    """Of one workload under one policy. times: None where it was only counted."""

    workload: str
    baseline: str
    num_pages: int
    counts: Counts
    times: Times | None


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """quietness: of the machine over all runs. machine: what it is."""

    results: tuple[Result, ...]
    quietness: Quietness
    machine: str

    @property
    def baselines(self) -> list[str]:
        """Names of the policies, in the order of the workload that ran under most of them.

        What other workloads ran under beside these comes first: the last one is compared with all.
        """
        orders: dict[str, list[str]] = {}
        for one in self.results:
            orders.setdefault(one.workload, []).append(one.baseline)
        longest = max(orders.values(), key=len, default=[])
        all_names = dict.fromkeys(one.baseline for one in self.results)
        return [*(name for name in all_names if name not in longest), *longest]

    def ratio(self, workload: str, baseline: str, to: str) -> float | None:
        """How often as quick `baseline` is as `to` on a workload; None where one was not timed."""
        times = {
            one.baseline: one.times.makespan_s
            for one in self.results
            if one.workload == workload and one.times is not None
        }
        return times[to] / times[baseline] if baseline in times and to in times else None

    def geometric_mean(self, baseline: str, to: str) -> float | None:
        """The ratios of all workloads together."""
        names = dict.fromkeys(one.workload for one in self.results)
        ratios = [self.ratio(name, baseline, to) for name in names]
        known = [ratio for ratio in ratios if ratio is not None]
        return exp(sum(map(log, known)) / len(known)) if known else None


@contextmanager
def random_model(shape: str) -> Generator[BenchModel]:
    """A model of random weights, there within the block. shape: one of `SHAPES`."""
    with TemporaryDirectory(prefix="flowforge-bench-") as directory:
        write_random_model(Path(directory), SHAPES[shape])
        yield BenchModel(Path(directory), SHAPES[shape].vocab_size)


def run_suite(
    workloads: Sequence[Workload],
    baselines: Sequence[Baseline],
    model: BenchModel,
    options: SuiteOptions,
    tell: Callable[[Result], None],
) -> SuiteResult:
    """Run every workload under every policy; policies take turns within a workload.

    tell: called with each result as it is there. Raises what the engine fails with.
    """
    meter, results, waited_s = QuietnessMeter(), list[Result](), 0.0
    for workload in workloads:
        num_pages = options.num_pages or enough_pages(workload, options)
        runs: dict[str, list[ProgramRun]] = {one.name: [] for one in baselines}
        for _ in range(max(1, options.repeats)):
            for baseline in baselines:
                run = run_once(workload, baseline, model, options, num_pages)
                runs[baseline.name].append(run)
                waited_s += run.makespan_s - run.busy_s if options.repeats else 0.0
        for name, of_baseline in runs.items():
            times = times_of(workload, of_baseline) if options.repeats else None
            counts = counts_of(workload, of_baseline[0])
            results.append(Result(workload.name, name, num_pages, counts, times))
            tell(results[-1])
    return SuiteResult(tuple(results), meter.look(waited_s=waited_s), machine_line())


def run_once(
    workload: Workload,
    baseline: Baseline,
    model: BenchModel,
    options: SuiteOptions,
    num_pages: int,
) -> ProgramRun:
    """One run on a fresh engine. Raises what the engine fails with.

    For times the workload's programs are workflows, and the runtime runs them beside the engine;
    for counts the engine is stepped by hand, so that they are the same every time.
    """
    config = EngineConfig(
        page_size=options.page_size,
        num_pages=num_pages,
        max_step_tokens=options.max_step_tokens,
        max_running=baseline.max_running or options.max_running,
        is_deterministic=options.is_deterministic,
        shared_attention=baseline.shared_attention,
        speculation="lookup" if baseline.speculates else "off",
        policy=baseline.policy,
    )

    def make_core() -> EngineCore:
        return load_core(model.directory, vocab_size=model.vocab_size, config=config)

    if options.repeats:
        rules = WorkflowRules(baseline.run_policy, baseline.has_window, options.temperature)
        return run_workflows(workload, make_core, model.vocab_size, rules)
    return run_programs(
        workload,
        make_core(),
        RunRules(
            tells_next_use=baseline.tells_next_use,
            has_window=baseline.has_window,
            temperature=options.temperature,
        ),
    )


def enough_pages(workload: Workload, options: SuiteOptions) -> int:
    """For all distinct tokens, or for all that runs at once with nothing shared."""
    texts = with_unlike_tokens(workload)
    counts = count_tokens(workload, texts)
    page_size = options.page_size
    lengths = (len(texts.prompts[call.idx]) + call.num_output for call in workload.calls)
    running = sorted(lengths, reverse=True)[: options.max_running]
    shared = (counts.unique + counts.output) // page_size + 2 * len(workload.calls)
    return max(shared, sum(running) // page_size + 2 * len(running))
