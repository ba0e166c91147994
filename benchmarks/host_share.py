"""What of a step's time no forward pass takes: by the engine alone, and with the runtime beside it.

Run `python benchmarks/host_share.py [SHAPE|default [WORKLOAD …]]` with nothing beside it: about two
minutes on two cores. Each workload of `flowforge bench workflows`, an eighth as long, is put to the
engine by hand and run as workflows, in turn, three times each; the figures are medians, of
milliseconds a step: in which there was something to compute, in the engine's step, in its forward
pass.
"""

from __future__ import annotations

import sys
from statistics import median
from typing import TYPE_CHECKING

from flowforge.bench.baselines import BASELINES
from flowforge.bench.quiet import QuietnessMeter, machine_line
from flowforge.bench.suite import SuiteOptions, enough_pages, run_once
from flowforge.bench.workloads import WORKLOADS
from flowforge.cli.bench_options import bench_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.bench.program_run import ProgramRun

SCALE, WAITS, REPEATS = 8, 0.0125, 3
ROW = "{:12} {:10} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}"


def figures(run: ProgramRun, *, has_runtime: bool) -> tuple[float, float, float]:
    """Milliseconds a step: busy, in the engine's step, in the forward pass."""
    statistics = run.statistics
    step_s = statistics.steps.step_s.total_s
    busy_s = run.busy_s if has_runtime else step_s
    per_step = 1e3 / statistics.num_steps
    return busy_s * per_step, step_s * per_step, statistics.steps.forward_s.total_s * per_step


def show(name: str, kind: str, runs: Sequence[ProgramRun], *, has_runtime: bool) -> None:
    """One row."""
    each = [figures(run, has_runtime=has_runtime) for run in runs]
    busy, step, forward = (median(column) for column in zip(*each, strict=True))
    host = median(1 - one[2] / one[0] for one in each)
    runtime = median(1 - one[1] / one[0] for one in each)
    steps = str(median(run.statistics.num_steps for run in runs))
    shown = [f"{value:.2f}" for value in (busy, step, forward)]
    print(ROW.format(name, kind, steps, *shown, f"{host:.1%}", f"{runtime:.1%}"), flush=True)


def main() -> None:
    """Run and print."""
    given = sys.argv[1] if len(sys.argv) > 1 else "default"
    names = sys.argv[2:] or ["judge6", "tips5", "react"]
    meter = QuietnessMeter()
    print(ROW.format("workload", "", "steps", "busy", "step", "forward", "host", "outside"))
    with bench_model(None if given == "default" else given, None) as model:
        for name in names:
            workload = WORKLOADS[name]().scaled(SCALE, WAITS)
            runs: dict[int, list[ProgramRun]] = {0: [], 1: []}
            for _ in range(REPEATS):
                for repeats, of_kind in runs.items():
                    options = SuiteOptions.scaled(SCALE, repeats=repeats, num_pages=None)
                    num_pages = enough_pages(workload, options)
                    of_kind.append(run_once(workload, BASELINES["flow"], model, options, num_pages))
            show(name, "by hand", runs[0], has_runtime=False)
            show(name, "workflows", runs[1], has_runtime=True)
    print(machine_line())
    print(meter.look().words)


if __name__ == "__main__":
    main()
