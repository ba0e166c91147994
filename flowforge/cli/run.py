"""`flowforge run`: a workflow file to its outputs, with live progress.

The result goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded


@guarded
def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The workflow file.", show_default=False)
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=VALUE", help="An input; may be repeated."),
    ] = None,
    inputs_file: Annotated[
        Path | None,
        typer.Option("--inputs", metavar="FILE", help="A JSON file with an object of inputs."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="DIR|HF_ID",
            help="A model directory or Hugging Face id; without it the default model.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every event as a JSON line on stdout.")
    ] = False,
    is_quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no accounting.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in FlowForge an error came from.")
    ] = False,
    backend: Annotated[str, typer.Option("--backend", hidden=True)] = "engine",
) -> ExitCode:
    """Run a workflow. The result goes to stdout, progress and accounting to stderr."""
    from flowforge.cli.diagnostics import print_diagnostics, print_workflow_errors
    from flowforge.cli.inputs import read_inputs
    from flowforge.runtime.invocation import load_file

    loaded = load_file(file)
    if loaded.program is None:
        print_workflow_errors(loaded.diagnostics, as_json=as_json)
        return ExitCode.WORKFLOW
    if not is_quiet:
        print_diagnostics(loaded.diagnostics, sys.stderr)
    values = read_inputs(loaded.program, inputs or [], inputs_file)

    from flowforge.cli.session import Session, SessionOptions

    options = SessionOptions(backend, model, as_json=as_json, is_quiet=is_quiet)
    return Session(loaded.program, values, options).run()
