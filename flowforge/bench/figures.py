"""What runs of a workload come to: counts, which are exact, and times, which are medians."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.bench.program_calls import Workload
    from flowforge.bench.program_run import ProgramRun


@dataclass(frozen=True, slots=True)
class Counts:
    """The same on every machine.

    prefill_amplification: prompt tokens computed, and output tokens computed again, over distinct
    prompt tokens. read_amplification: KV rows read over distinct ones, summed over steps.
    peak_pages: held at once; least_pages: that the sequences which ran then need, full pages once
    for all and a partly filled one for each. num_steps, critical_len: steps made, and those of the
    longest chain of calls at least.
    """

    prompt_tokens: int
    output_tokens: int
    unique_tokens: int
    prefilled_tokens: int
    prefill_amplification: float
    read_amplification: float
    peak_pages: int
    least_pages: int
    num_steps: int
    critical_len: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds; medians over runs, of times to a token also over calls.

    makespan_s: with waits for tools. ttft_s: from when a call could start. host_share: of the time
    in which not only tools were waited for, what no forward pass took. bound_s: no schedule of this
    run's own fastest steps ends earlier.
    """

    makespan_s: float
    tokens_per_s: float
    ttft_s: float
    tpot_s: float
    host_share: float
    bound_s: float
    wall_s: float
    cpu_s: float


def counts_of(workload: Workload, run: ProgramRun) -> Counts:
    """What a run computed and read."""
    statistics = run.statistics
    num_prefilled = statistics.prefilled_tokens + run.num_refilled
    return Counts(
        prompt_tokens=run.counts.prompt,
        output_tokens=run.counts.output,
        unique_tokens=run.counts.unique,
        prefilled_tokens=num_prefilled,
        prefill_amplification=num_prefilled / run.counts.unique,
        read_amplification=statistics.reads.amplification,
        peak_pages=statistics.kv.pages_peak_held,
        least_pages=run.least_pages,
        num_steps=statistics.num_steps,
        critical_len=workload.critical_len,
        num_preemptions=statistics.scheduler.num_preemptions,
    )


def times_of(workload: Workload, runs: Sequence[ProgramRun]) -> Times:
    """What runs took."""
    return Times(
        makespan_s=median(run.makespan_s for run in runs),
        tokens_per_s=median(run.counts.output / run.makespan_s for run in runs),
        ttft_s=median(one.first_token_s - one.start_s for run in runs for one in run.times),
        tpot_s=_median_tpot(runs),
        host_share=median(_host_share(run) for run in runs),
        bound_s=median(_least_makespan(workload, run) for run in runs),
        wall_s=median(run.wall_s for run in runs),
        cpu_s=median(run.cpu_s for run in runs),
    )


def _median_tpot(runs: Sequence[ProgramRun]) -> float:
    """Nothing where no call writes more than one token."""
    values = [
        (one.end_s - one.first_token_s) / (one.num_output - 1)
        for run in runs
        for one in run.times
        if one.num_output > 1
    ]
    return median(values) if values else 0.0


def _host_share(run: ProgramRun) -> float:
    return 1 - run.statistics.steps.forward_s.total_s / run.busy_s if run.busy_s else 0.0


def _least_makespan(workload: Workload, run: ProgramRun) -> float:
    """The longest chain in this run's quickest steps, or all work at its best rate."""
    computing = [step for step in run.steps if step.num_rows]
    quickest_s = min(step.seconds for step in computing)
    per_row_s = min(step.seconds / step.num_rows for step in computing)
    ends: list[float] = []
    for call in workload.calls:
        after = (ends[idx] + workload.calls[idx].wait_s for idx in call.needs)
        start = max(after, default=call.arrival_s)
        ends.append(start + max(1, call.num_output) * quickest_s)
    return max(max(ends), (run.counts.unique + run.counts.output) * per_row_s)
