"""`flowforge check`: all problems of workflow files, before a token is spent."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded


@guarded
def check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Workflow files.", show_default=False)
    ],
    is_strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in FlowForge an error came from.")
    ] = False,
) -> ExitCode:
    """Check workflow files. Problems go to stdout; the exit code is 3 when there are errors."""
    from flowforge.cli.diagnostics import print_diagnostics, print_diagnostics_as_json
    from flowforge.language.diagnostics import summary_of
    from flowforge.runtime.checking import load_file

    diagnostics = [diagnostic for file in files for diagnostic in load_file(file).diagnostics]
    has_errors = any(diagnostic.severity == "error" for diagnostic in diagnostics)
    if as_json:
        print_diagnostics_as_json(diagnostics)
    else:
        print_diagnostics(diagnostics, sys.stdout)
        checked = f"{len(files)} file{'' if len(files) == 1 else 's'} checked"
        typer.echo(f"{checked}: {summary_of(diagnostics)}")
    is_refused = has_errors or (is_strict and bool(diagnostics))
    return ExitCode.WORKFLOW if is_refused else ExitCode.DONE
