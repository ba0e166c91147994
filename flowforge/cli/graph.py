"""`flowforge graph`: a workflow drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded

if TYPE_CHECKING:
    from pathlib import Path


@click.command
@click.argument(
    "file",
    metavar="FILE",
    type=options.PATH,
    shell_complete=completers.files(*completers.WORKFLOWS),
)
@click.option(
    "--format",
    "-f",
    "graph_format",
    type=click.Choice(["text", "mermaid", "dot"]),
    default="text",
    show_default=True,
    help="What to write.",
)
@options.as_json
@options.traceback
@guarded
def graph(
    file: Path,
    *,
    graph_format: Literal["text", "mermaid", "dot"],
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Draw a workflow: its steps, and what passes between them. Nothing is run."""
    from dataclasses import asdict

    from flowforge.cli.diagnostics import print_workflow_errors
    from flowforge.cli.failures import print_json_line
    from flowforge.cli.flow_files import require_workflow_file
    from flowforge.language.graph import dot_of, graph_of, mermaid_of, text_of_graph
    from flowforge.language.loader import load

    require_workflow_file(file, "graph")
    result = load(file)
    if result.program is None:
        print_workflow_errors(result.diagnostics, as_json=as_json)
        return ExitCode.WORKFLOW
    drawn = graph_of(result.program)
    if as_json:
        print_json_line({"event": "graph", **asdict(drawn)})
        return ExitCode.DONE
    write = {"text": text_of_graph, "mermaid": mermaid_of, "dot": dot_of}[graph_format]
    click.echo(write(drawn), nl=False)
    return ExitCode.DONE
