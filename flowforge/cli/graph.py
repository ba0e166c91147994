"""`flowforge graph`: a workflow drawn."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded


class GraphFormat(StrEnum):
    """What a graph is written in."""

    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"


@guarded
def graph(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The workflow file.", show_default=False)
    ],
    graph_format: Annotated[
        GraphFormat, typer.Option("--format", "-f", help="What to write.")
    ] = GraphFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in FlowForge an error came from.")
    ] = False,
) -> ExitCode:
    """Draw a workflow: its steps, and what passes between them. Nothing is run."""
    from dataclasses import asdict

    from flowforge.cli.diagnostics import print_workflow_errors
    from flowforge.cli.failures import print_json_line
    from flowforge.language.graph import dot_of, graph_of, mermaid_of, text_of_graph
    from flowforge.language.loader import load

    result = load(file)
    if result.program is None:
        print_workflow_errors(result.diagnostics, as_json=as_json)
        return ExitCode.WORKFLOW
    drawn = graph_of(result.program)
    if as_json:
        print_json_line({"event": "graph", **asdict(drawn)})
        return ExitCode.DONE
    write = {
        GraphFormat.TEXT: text_of_graph,
        GraphFormat.MERMAID: mermaid_of,
        GraphFormat.DOT: dot_of,
    }[graph_format]
    typer.echo(write(drawn), nl=False)
    return ExitCode.DONE
