"""`flowforge bench pressure`: what is computed again when KV pages are short."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.cli import bench_options, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.printing import print_text

if TYPE_CHECKING:
    from flowforge.bench.pressure import PressureResult

_WIDTHS = (17, 18, 9, 6, 6, 7, 12, 6, 10)
_COLUMNS = (
    *("workload", "policy", "peak of", "share", "pages", "PA", "clairvoyant", "ratio"),
    "preempted",
)


@click.command
@bench_options.workload_names
@bench_options.baseline_names
@bench_options.shape
@options.model
@bench_options.num_programs
@click.option(
    "--share",
    "shares",
    multiple=True,
    metavar="PERCENT",
    type=click.IntRange(1, 100),
    default=(40, 60, 80),
    show_default=True,
    help="Pages, in percent of the peak; may be repeated.",
)
@options.as_json
@options.traceback
@guarded
def pressure(
    *,
    names: tuple[str, ...],
    baselines: tuple[str, ...],
    shape: str | None,
    model: str | None,
    num_programs: int | None,
    shares: tuple[int, ...],
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Run workloads with too few KV pages, and count what is computed again.

    PA: tokens computed that were not written for the first time, over distinct prompt tokens.
    clairvoyant: the same for the calls of this run in their order, if eviction had known them all
    (Bélády's rule). Peak: the pages that running calls held at most where pages are enough (held),
    or those that all distinct tokens take (distinct); at least what the longest call takes.

    Counted, so the same on every machine. Without --shape and --model weights are those of the
    shape 'tiny'; without --baseline the policy is 'flow'.
    """
    if shape is not None and model is not None:
        raise click.UsageError("--shape and --model are both given; give one of them")
    from flowforge.bench.baselines import BASELINES
    from flowforge.bench.pressure import run_pressure
    from flowforge.bench.suite import SuiteOptions

    if not as_json:
        print_text(_row(_COLUMNS))
    if shape is None and model is None:
        shape = "tiny"
    with bench_options.bench_model(shape, model) as bench_model:
        results = run_pressure(
            bench_options.named_workloads(names, num_programs),
            [BASELINES[name] for name in baselines or ("flow",)],
            bench_model,
            SuiteOptions(repeats=0),
            lambda result: None if as_json else print_text(_line_of(result)),
            [share / 100 for share in shares],
        )
    if as_json:
        from dataclasses import asdict

        bench_options.print_record({"results": [asdict(one) for one in results]})
    return ExitCode.DONE


def _line_of(result: PressureResult) -> str:
    return _row(
        (
            result.workload,
            result.baseline,
            result.peak_of,
            f"{100 * result.share:.0f} %",
            str(result.num_pages),
            f"{result.prefill_amplification:.3f}",
            f"{result.clairvoyant_amplification:.3f}",
            f"{result.over_clairvoyant:.2f}",
            str(result.num_preemptions),
        )
    )


def _row(cells: tuple[str, ...]) -> str:
    texts = [cell.ljust(width) for cell, width in zip(cells[:3], _WIDTHS[:3], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[3:], _WIDTHS[3:], strict=True)]
    return " ".join([*texts, *numbers]).rstrip() + "\n"
