"""`flowforge bench`: how much the engine computes, reads and waits, beside what others do."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.bench_serve import serve
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.printing import print_note, print_text

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from flowforge.bench.program_calls import Workload
    from flowforge.bench.suite import BenchModel, SuiteResult

WORKLOAD_NAMES = (
    *("tot3x3", "tot_deep2x4", "judge6", "react", "genagents", "mmlu5shot", "hellaswag20"),
    *("tips5", "skeleton", "chat_short", "chat_long", "json_fields", "chain_sum", "map_reduce"),
    *("gpts4", "multi_agent_code", "agent_rollout", "kvflow_cycle", "multi_few_shot"),
)
BASELINE_NAMES = (
    *("serial", "batch", "block16", "radix", "flow", "flow-duplicates", "flow-logits"),
    *("flow-order", "flow-next_use", "flow-spared_output", "flow-critical", "flow-window"),
    *("flow-last_use", "flow-shared_reads"),
)
SHAPE_NAMES = ("tiny", "smollm2-135m")
"""What --help lists without loading the engine."""


@click.group
def bench() -> None:
    """Measure the engine on this machine, and servers."""


bench.add_command(serve)


@bench.command
@click.option(
    "--workload",
    "names",
    multiple=True,
    metavar="NAME",
    type=click.Choice(WORKLOAD_NAMES),
    help=f"Only this one; may be repeated. Of {', '.join(WORKLOAD_NAMES)}.",
)
@click.option(
    "--trace",
    metavar="CSV",
    type=options.PATH,
    help="Replay recorded sessions instead: columns session_id, arrival_time, round_idx, "
    "prefix_len, input_len, output_len, tool_wait_after_ms.",
)
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    metavar="NAME",
    type=click.Choice(BASELINE_NAMES),
    help="A policy of the same engine; may be repeated. serial: one call at a time, nothing is "
    "used again. batch: continuous batching, nothing is used again. block16: full pages are used "
    "again. radix: every token, prompts that come together are each computed. flow: all there is. "
    "flow-PART: all but duplicates, logits, order, next_use, spared_output, critical, last_use, "
    "window or shared_reads. Without it the first five.",
)
@click.option(
    "--shape",
    metavar="NAME",
    type=click.Choice(SHAPE_NAMES),
    help="Random weights of a shape, 'tiny' or 'smollm2-135m', instead of a model.",
)
@options.model
@click.option(
    "--programs",
    "num_programs",
    metavar="N",
    type=click.IntRange(min=1),
    help="Only the first N programs of each workload.",
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
@click.option(
    "--even-if-busy",
    is_flag=True,
    help="Compare times also when other programs took the machine meanwhile.",
)
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
    num_pages: int | None,
    repeats: int,
    counts_only: bool,
    even_if_busy: bool,
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Run workloads of language-model programs under several policies of the same engine.

    PA: prompt tokens computed over distinct ones. KVRA: KV rows read over distinct ones. ÷ least:
    pages held over those that hold what the greatest step reads. ÷ chain: steps over those of the
    longest chain of calls. ÷ bound: time over the least that any order of this run's steps takes.
    host: of the time of steps, what the forward pass does not take.

    Waits for tools are part of the time, and are not waited for. Ratios of times are printed when
    the machine was quiet.
    """
    if shape is not None and model is not None:
        raise click.UsageError("--shape and --model are both given; give one of them")
    if names and trace is not None:
        raise click.UsageError("--workload and --trace are both given; give one of them")
    from flowforge.bench.baselines import BASELINES, MAIN_BASELINES
    from flowforge.bench.report import header, line_of
    from flowforge.bench.suite import SuiteOptions, run_suite

    workloads = _workloads(names, trace, num_programs)
    chosen = [BASELINES[name] for name in baselines or MAIN_BASELINES]
    suite_options = SuiteOptions(repeats=0 if counts_only else repeats, num_pages=num_pages)
    if not as_json:
        print_text(header(is_timed=not counts_only) + "\n")
    with _model(shape, model) as bench_model:
        suite = run_suite(
            workloads,
            chosen,
            bench_model,
            suite_options,
            lambda result: None if as_json else print_text(line_of(result) + "\n"),
        )
    _print_end(suite, even_if_busy=even_if_busy, as_json=as_json)
    return ExitCode.DONE


def _workloads(
    names: tuple[str, ...], trace: Path | None, num_programs: int | None
) -> list[Workload]:
    from flowforge.bench.traces import read_trace
    from flowforge.bench.workloads import WORKLOADS

    if trace is not None:
        workloads = [read_trace(trace)]
    else:
        workloads = [WORKLOADS[name]() for name in names or WORKLOADS]
    if num_programs is None:
        return workloads
    return [workload.first_programs(num_programs) for workload in workloads]


def _model(shape: str | None, model: str | None) -> AbstractContextManager[BenchModel]:
    from flowforge.bench.suite import BenchModel, random_model

    if shape is not None:
        return random_model(shape)
    from flowforge.engine.model_store import resolve_model
    from flowforge.engine.models.config import read_model_config

    directory = resolve_model(model).directory
    return nullcontext(BenchModel(directory, read_model_config(directory).vocab_size))


def _print_end(suite: SuiteResult, *, even_if_busy: bool, as_json: bool) -> None:
    from flowforge.bench.quiet import machine_line
    from flowforge.bench.report import as_json as suite_as_json
    from flowforge.bench.report import ratio_lines

    may_compare = even_if_busy or suite.quietness.is_quiet
    if as_json:
        import json

        whole = suite_as_json(suite, machine_line(), with_ratios=may_compare)
        print_text(json.dumps(whole, indent=2) + "\n")
        return
    print_text(machine_line() + "\n")
    if all(result.times is None for result in suite.results):
        return
    if may_compare:
        print_text("".join(f"{line}\n" for line in ratio_lines(suite, "flow")))
        return
    quiet = suite.quietness
    others = "" if quiet.others is None else f", others used {quiet.others:.1f} cores"
    print_note(
        f"times are not compared: the machine was busy (CPU time was {quiet.cpu_share:.0%} of wall "
        f"time{others}); --even-if-busy compares them all the same"
    )
