"""`flowforge run`: a workflow file or a flow of a Python file to its outputs, with live progress.

The result goes to stdout, everything else to stderr.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded


@guarded
def run(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A workflow file, or FILE.py:NAME, a flow of a Python file.",
            show_default=False,
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE",
            help="An input; may be repeated. NAME=@FILE takes the text of a file.",
        ),
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
            metavar="DIR|GGUF|HF_ID",
            help="A model directory, GGUF file or Hugging Face id; without it the default model.",
            show_default=False,
        ),
    ] = None,
    answers_file: Annotated[
        Path | None,
        typer.Option(
            "--answers",
            metavar="FILE",
            help="A YAML or JSON file of answers by step path.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="For everything random; without it one is drawn and told in the first event.",
            show_default=False,
        ),
    ] = None,
    num_threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            min=1,
            help="CPU threads of the engine; without it the cores that it may use.",
            show_default=False,
        ),
    ] = None,
    context_len: Annotated[
        int | None,
        typer.Option(
            "--context-len",
            min=1,
            metavar="TOKENS",
            help="Load the model for texts of this length; without it for what it knows as it is.",
            show_default=False,
        ),
    ] = None,
    kv_memory: Annotated[
        int | None,
        typer.Option(
            "--kv-memory",
            min=1,
            metavar="MB",
            help="Memory for KV pages; without it a quarter of what is free, at most 2 GiB.",
            show_default=False,
        ),
    ] = None,
    num_pages: Annotated[
        int | None,
        typer.Option(
            "--kv-pages",
            min=1,
            help="An exact number of KV pages, instead of --kv-memory.",
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
    from flowforge.cli.answers import read_answers
    from flowforge.cli.inputs import read_inputs
    from flowforge.engine.config import EngineConfig

    if kv_memory is not None and num_pages is not None:
        raise typer.BadParameter("--kv-memory and --kv-pages exclude each other: give one")
    engine = EngineConfig(
        kv_bytes=None if kv_memory is None else kv_memory * 1_000_000,
        num_pages=num_pages,
        num_threads=num_threads,
        context_len=context_len,
    )
    given = read_inputs(inputs or [], inputs_file)
    answers = read_answers(answers_file)
    if file.endswith(".py") or ".py:" in file:
        from flowforge.cli.workflows import flow_to_begin

        begin = flow_to_begin(file, given, seed)
    else:
        from flowforge.cli.workflows import program_to_begin

        found = program_to_begin(file, given, answers, seed, as_json=as_json, is_quiet=is_quiet)
        if found is None:
            return ExitCode.WORKFLOW
        begin = found

    from flowforge.cli.session import Session, SessionOptions

    options = SessionOptions(
        backend, model, answers, as_json=as_json, is_quiet=is_quiet, engine=engine
    )
    return Session(begin, options).run()
