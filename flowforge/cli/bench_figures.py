"""`flowforge bench figures`: what runs of `flowforge bench workflows --json` found, together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.cli import bench_options, options
from flowforge.cli.bench_workflows import print_end
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.printing import print_text

if TYPE_CHECKING:
    from pathlib import Path


@click.command
@click.argument("files", nargs=-1, required=True, type=options.PATH, metavar="FILE...")
@bench_options.even_if_busy
@bench_options.plot
@options.as_json
@options.traceback
@guarded
def figures(
    *,
    files: tuple[Path, ...],
    even_if_busy: bool,
    plot: Path | None,
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Join what `flowforge bench workflows --json` printed for several workloads.

    Policies are compared only within a workload, so workloads may be measured one after the other,
    each when the machine is quiet. Runs of one workload in several files are refused.
    """
    from flowforge.bench.report import header, line_of
    from flowforge.bench.result_files import read_results

    suite = read_results(files)
    if not as_json:
        is_timed = any(one.times is not None for one in suite.results)
        print_text(header(is_timed=is_timed) + "\n")
        print_text("".join(line_of(one) + "\n" for one in suite.results))
    print_end(suite, even_if_busy=even_if_busy, as_json=as_json, plot=plot)
    return ExitCode.DONE
