"""`flowforge bench page`: a page of Markdown, with pictures, of what the bench found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.output_files import make_folder, write_file
from flowforge.cli.printing import print_note
from flowforge.view.texts import reason_text

if TYPE_CHECKING:
    from pathlib import Path

_MADE_BY = "flowforge bench page $(find benchmarks/results -name '*.json') --out docs"


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
@click.option(
    "--readme",
    metavar="FILE",
    type=options.PATH,
    help="Renew the short table of main figures in this page.",
)
@options.traceback
@guarded
def page(
    *, files: tuple[Path, ...], folder: Path, readme: Path | None, traceback: bool
) -> ExitCode:
    """Write a page of what runs with --json found: engine, workflows and pressure.

    It says what is asked of the engine, what was measured, when, where and by which commands. Runs
    of `flowforge bench workflows` and `pressure` may each hold a part of the workloads.
    """
    from flowforge.bench.performance_page import performance_files, with_main_figures
    from flowforge.bench.result_files import read_records

    records = read_records(sorted(files))
    written = {folder / name: text for name, text in performance_files(records, _MADE_BY).items()}
    if readme is not None:
        renewed = with_main_figures(_text_of(readme), records)
        if renewed is None:
            raise click.UsageError(f"{str(readme)!r} has no table of main figures to renew")
        written[readme] = renewed
    make_folder(folder)
    for path, text in written.items():
        write_file(path, text)
        print_note(f"wrote {path}")
    return ExitCode.DONE


def _text_of(readme: Path) -> str:
    try:
        return readme.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{str(readme)!r} cannot be read: {reason_text(error)}") from error
