"""`flowforge check`: all problems of workflow files, before a token is spent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded

if TYPE_CHECKING:
    from pathlib import Path


@click.command
@click.argument(
    "files",
    metavar="FILE...",
    type=options.PATH,
    nargs=-1,
    required=True,
    shell_complete=completers.files(*completers.WORKFLOWS),
)
@click.option("--strict", "is_strict", is_flag=True, help="Warnings count as errors.")
@options.as_json
@options.traceback
@guarded
def check(files: tuple[Path, ...], *, is_strict: bool, as_json: bool, traceback: bool) -> ExitCode:
    """Check workflow files. Problems go to stdout; the exit code is 3 when there are errors."""
    from flowforge.cli.diagnostics import (
        print_diagnostics,
        print_diagnostics_as_json,
        summary_line,
    )
    from flowforge.cli.flow_files import require_workflow_file
    from flowforge.runtime.checking import load_file

    for file in files:
        require_workflow_file(file, "check")
    diagnostics = [diagnostic for file in files for diagnostic in load_file(file).diagnostics]
    has_errors = any(diagnostic.severity == "error" for diagnostic in diagnostics)
    if as_json:
        print_diagnostics_as_json(diagnostics)
    else:
        print_diagnostics(diagnostics, sys.stdout)
        checked = f"{len(files)} file{'' if len(files) == 1 else 's'} checked"
        click.echo(f"{checked}: {summary_line(diagnostics)}")
    is_refused = has_errors or (is_strict and bool(diagnostics))
    return ExitCode.WORKFLOW if is_refused else ExitCode.DONE
