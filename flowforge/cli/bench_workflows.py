"""`flowforge bench workflows`: programs of calls under several policies of the same engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.cli import bench_options, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.output_files import require_writable, write_file
from flowforge.cli.printing import print_note, print_text

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.bench.program_calls import Workload
    from flowforge.bench.suite import SuiteResult


@click.command
@bench_options.workload_names
@click.option(
    "--trace",
    metavar="CSV",
    type=options.PATH,
    help="Replay recorded sessions instead: columns session_id, arrival_time, round_idx, "
    "prefix_len, input_len, output_len, tool_wait_after_ms.",
)
@bench_options.baseline_names
@bench_options.shape
@options.model
@bench_options.num_programs
@click.option(
    "--scale",
    metavar="N",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Divide all lengths by N, and with them pages and the tokens of a step.",
)
@click.option(
    "--waits",
    metavar="FACTOR",
    type=options.FiniteRange(min=0),
    default=1.0,
    show_default=True,
    help="Waits for tools are so many times as long: less than 1 for a model that is quicker than "
    "the one they were known with.",
)
@click.option(
    "--pages",
    "num_pages",
    metavar="N",
    type=click.IntRange(min=1),
    help="KV pages; without it so many that nothing is evicted.",
)
@click.option(
    "--repeats",
    metavar="N",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Runs of each, in turn; times are medians.",
)
@click.option(
    "--count",
    "counts_only",
    is_flag=True,
    help="Count in one run and time nothing: figures are the same on every machine.",
)
@bench_options.even_if_busy
@bench_options.plot
@options.as_json
@options.traceback
@guarded
def workflows(
    *,
    names: tuple[str, ...],
    trace: Path | None,
    baselines: tuple[str, ...],
    shape: str | None,
    model: str | None,
    num_programs: int | None,
    scale: int,
    waits: float,
    num_pages: int | None,
    repeats: int,
    counts_only: bool,
    even_if_busy: bool,
    plot: Path | None,
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Run workloads of language-model programs under several policies of the same engine.

    PA: prompt tokens computed over distinct ones. KVRA: KV rows read over distinct ones. ÷ least:
    pages held over those that the running calls need. ÷ chain: steps over those that the longest
    chain of calls takes. ÷ bound: time over the least that any order of this run's steps takes.
    host: of the time in which there was something to compute, what no forward pass took.

    For times the programs are workflows that the runtime runs beside the engine, and tools are
    waited for; for --count the engine is stepped call by call, and the clock jumps over waits.
    Ratios of times are printed when the machine was quiet. Without --baseline the policies are
    serial, batch, block16, radix, flow.
    """
    if shape is not None and model is not None:
        raise click.UsageError("--shape and --model are both given; give one of them")
    if names and trace is not None:
        raise click.UsageError("--workload and --trace are both given; give one of them")
    if plot is not None and counts_only:
        raise click.UsageError("--plot draws ratios of times, and --count takes none")
    require_writable(plot)
    from flowforge.bench.baselines import BASELINES, MAIN_BASELINES
    from flowforge.bench.report import header, line_of
    from flowforge.bench.suite import SuiteOptions, run_suite

    workloads = _workloads(names, trace, num_programs)
    if scale > 1 or waits != 1:
        workloads = [one.scaled(scale, waits) for one in workloads]
    suite_options = SuiteOptions.scaled(
        scale, repeats=0 if counts_only else repeats, num_pages=num_pages
    )
    if not as_json:
        print_text(header(is_timed=not counts_only) + "\n")
    with bench_options.bench_model(shape, model) as bench_model:
        suite = run_suite(
            workloads,
            [BASELINES[name] for name in baselines or MAIN_BASELINES],
            bench_model,
            suite_options,
            lambda result: None if as_json else print_text(line_of(result) + "\n"),
        )
    print_end(suite, even_if_busy=even_if_busy, as_json=as_json, plot=plot)
    return ExitCode.DONE


def print_end(suite: SuiteResult, *, even_if_busy: bool, as_json: bool, plot: Path | None) -> None:
    """What is said of all results together, and the plot of them."""
    from flowforge.bench.plot import ratio_plot
    from flowforge.bench.report import as_json as suite_as_json
    from flowforge.bench.report import ratio_lines

    may_compare = even_if_busy or suite.quietness.is_quiet
    is_timed = any(result.times is not None for result in suite.results)
    if as_json:
        bench_options.print_record(suite_as_json(suite, with_ratios=may_compare and is_timed))
    else:
        print_text(suite.machine + "\n")
    if not is_timed:
        return
    if not may_compare:
        quiet = suite.quietness
        others = "" if quiet.others is None else f", others used {quiet.others:.1f} cores"
        print_note(
            f"times are not compared: the machine was busy (CPU time was {quiet.cpu_share:.0%} of "
            f"wall time{others}); --even-if-busy compares them all the same"
        )
        return
    marked = "" if suite.quietness.is_quiet else "on a busy machine: "
    if not as_json:
        print_text("".join(f"{marked}{line}\n" for line in ratio_lines(suite, "flow")))
    if plot is not None:
        write_file(plot, ratio_plot(suite, marked))


def _workloads(
    names: tuple[str, ...], trace: Path | None, num_programs: int | None
) -> list[Workload]:
    from flowforge.bench.traces import read_trace

    if trace is None:
        return bench_options.named_workloads(names, num_programs)
    return bench_options.first_programs([read_trace(trace)], num_programs)
