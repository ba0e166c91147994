"""`flowforge plan`: what a run of a workflow will cost, before a token is spent.

Reads the model's tokenizer, template and configuration, and loads no weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
@options.inputs
@options.model
@click.option(
    "--max-prefill",
    metavar="N",
    type=click.IntRange(min=0),
    help="Exit with 1 when the run may prefill more than N tokens.",
)
@click.option(
    "--pages",
    "num_pages",
    metavar="N",
    type=click.IntRange(min=1),
    help="KV pages there will be; says whether they are enough.",
)
@options.as_json
@options.traceback
@guarded
def plan(
    file: Path,
    *,
    inputs: tuple[str, ...],
    inputs_file: Path | None,
    model: str | None,
    max_prefill: int | None,
    num_pages: int | None,
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Say what a run will cost: tokens, KV pages, the longest chain. Nothing is run.

    Exits with 1 when a prompt and its answer are certain not to fit the model's context, or what
    is held at once not the pages of --pages.

    Exact where prompts follow from the inputs; elsewhere the least and the most, as far as ordinary
    text goes. It supposes that no step fails: retries and catches are in the most.
    """
    import sys
    from dataclasses import asdict

    from flowforge.cli.diagnostics import print_workflow_errors
    from flowforge.cli.failures import print_json_line
    from flowforge.cli.flow_files import require_workflow_file
    from flowforge.cli.inputs import read_inputs
    from flowforge.cli.plan_models import texts_of_models
    from flowforge.cli.plan_text import text_of_plan
    from flowforge.cli.printing import print_note
    from flowforge.language.inputs import resolve_inputs
    from flowforge.planning import plan_program
    from flowforge.runtime.checking import load_file

    require_workflow_file(file, "plan")
    given = read_inputs(inputs, inputs_file)
    loaded = load_file(file)
    if loaded.program is None:
        print_workflow_errors(loaded.diagnostics, as_json=as_json)
        return ExitCode.WORKFLOW
    values = resolve_inputs(loaded.program, given)
    own = loaded.program.model if model is None else model
    found = texts_of_models(loaded.program, own, is_quiet=as_json)
    tokens, others = found.own, found.others
    planned = plan_program(loaded.program, values, tokens, others=others, num_pages=num_pages)
    if as_json:
        fits = {"context_fit": planned.context_fit, "pool_fit": planned.pool_fit}
        unknown = {"unknown": [*found.unknown]}
        print_json_line({"event": "plan", **asdict(planned), **fits, **unknown})
    else:
        for note in found.unknown:
            print_note(note)
        click.echo(text_of_plan(planned), nl=False)
    if planned.context_fit == "does not fit":
        sys.stderr.write("the run cannot be: a prompt and its answer are over the context\n")
        return ExitCode.RUN_FAILED
    if planned.pool_fit == "does not fit":
        needed = planned.cost.pages.least
        sys.stderr.write(f"the run holds at least {needed:,} KV pages, of {num_pages:,} there\n")
        return ExitCode.RUN_FAILED
    prefilled = planned.cost.prefilled
    if max_prefill is None or not prefilled.may_exceed(max_prefill):
        return ExitCode.DONE
    most = "any number of" if prefilled.most is None else f"{prefilled.most:,}"
    sys.stderr.write(f"the run may prefill {most} tokens, expected at most {max_prefill:,}\n")
    return ExitCode.RUN_FAILED
