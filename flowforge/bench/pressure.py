"""Workloads with too few pages: what is computed again, beside what clairvoyant eviction would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from flowforge.bench.baselines import BASELINES
from flowforge.bench.clairvoyant import clairvoyant_tokens
from flowforge.bench.program_calls import with_unlike_tokens
from flowforge.bench.suite import SuiteOptions, enough_pages, run_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowforge.bench.baselines import Baseline
    from flowforge.bench.program_calls import Workload
    from flowforge.bench.program_run import ProgramRun
    from flowforge.bench.suite import BenchModel

PeakOf: TypeAlias = Literal["held", "distinct"]
SHARES = (0.4, 0.6, 0.8)


@dataclass(frozen=True, slots=True)
class PressureResult:
    """Of one workload under one policy with `num_pages` pages.

    peak_of: pages that running sequences held at most where pages are enough, or that all distinct
    tokens take. share: of that peak; where the longest call does not fit, as many as it takes.
    prefill_amplification: prompt tokens computed, and output tokens computed again, over distinct
    prompt tokens; clairvoyant_amplification: the same if eviction had known the run's future.
    """

    workload: str
    baseline: str
    peak_of: PeakOf
    share: float
    num_pages: int
    prefill_amplification: float
    clairvoyant_amplification: float
    num_preemptions: int
    makespan_s: float

    @property
    def over_clairvoyant(self) -> float:
        """How much more was computed than with eviction that knows the future."""
        return self.prefill_amplification / self.clairvoyant_amplification


def run_pressure(
    workloads: Sequence[Workload],
    baselines: Sequence[Baseline],
    model: BenchModel,
    options: SuiteOptions,
    tell: Callable[[PressureResult], None],
    shares: Sequence[float] = SHARES,
) -> list[PressureResult]:
    """Count every workload under every policy with shares of both peaks.

    tell: called with each result as it is there. Raises what the engine fails with.
    """
    results: list[PressureResult] = []
    for workload in workloads:
        enough = enough_pages(workload, options)
        whole = run_once(workload, BASELINES["flow"], model, options, enough)
        num_distinct = (whole.counts.unique + whole.counts.output) // options.page_size
        peaks = {"held": whole.statistics.kv.pages_peak_held, "distinct": num_distinct}
        least = _longest_call(workload, options)
        for peak_of in get_args(PeakOf):
            for share in shares:
                num_pages = max(int(share * peaks[peak_of]), least)
                for baseline in baselines:
                    run = run_once(workload, baseline, model, options, num_pages)
                    figures = (workload.name, baseline.name, peak_of, share, num_pages)
                    results.append(PressureResult(*figures, *_computed(workload, run, num_pages)))
                    tell(results[-1])
    return results


def _computed(
    workload: Workload, run: ProgramRun, num_pages: int
) -> tuple[float, float, int, float]:
    num_computed = run.statistics.prefilled_tokens + run.num_refilled
    return (
        num_computed / run.counts.unique,
        clairvoyant_tokens(workload, run.texts, run.log, num_pages) / run.counts.unique,
        run.statistics.scheduler.num_preemptions,
        run.makespan_s,
    )


def _longest_call(workload: Workload, options: SuiteOptions) -> int:
    texts = with_unlike_tokens(workload)
    lengths = (len(texts.prompts[call.idx]) + call.num_output for call in workload.calls)
    return -(-max(lengths) // options.page_size)
