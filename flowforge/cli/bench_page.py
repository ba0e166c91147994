"""`flowforge bench page`: a page of Markdown, with pictures, of what the bench found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.printing import print_note

if TYPE_CHECKING:
    from pathlib import Path


@click.command
@click.argument("files", nargs=-1, required=True, type=options.PATH, metavar="FILE...")
@click.option(
    "--out",
    "folder",
    metavar="DIR",
    type=options.PATH,
    required=True,
    help="Write performance.md and its pictures there.",
)
@options.traceback
@guarded
def page(*, files: tuple[Path, ...], folder: Path, traceback: bool) -> ExitCode:
    """Write a page of what runs with --json found: engine, workflows and pressure.

    It says what is asked of the engine, what was measured, when, where and by which commands. Runs
    of `flowforge bench workflows` may each hold a part of the workloads.
    """
    from flowforge.bench.performance_page import performance_files
    from flowforge.bench.result_files import read_record

    made_by = "flowforge bench page benchmarks/results/*.json --out docs"
    written = performance_files([read_record(file) for file in sorted(files)], made_by)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
        print_note(f"wrote {folder / name}")
    return ExitCode.DONE
