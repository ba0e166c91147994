"""`flowforge init`: a workflow to start from."""

from __future__ import annotations

from pathlib import Path

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded

STARTER = """\
# A first workflow: a list, a branch for each of its items, and a text made of all.
# `${ step }` passes a value; `from: step` passes a conversation, whose KV pages are shared.
flowforge: 1
name: starter
inputs:
  topic: { type: string, default: bicycles }

steps:
  points:
    system: You answer briefly.
    user: Name two things that matter about ${ inputs.topic }.
    gen:                           # the answer is JSON of this form, token by token
      json:
        type: array
        items: { type: string, pattern: "^[A-Z][a-z ]{3,29}$" }
        minItems: 2
        maxItems: 2
      temperature: 0

  details:                         # the branches run at once; results keep the order of the list
    for: point in points
    do:
      detail:
        from: points
        user: Say one sentence about ${ point }.
        gen: { max_tokens: 40, temperature: 0, stop: ["\\n"] }

outputs:
  text: ${ details | bullets }
"""
_FILE_NAME = "workflow.yaml"


@click.command
@click.argument("path", metavar="[DIR|FILE.yaml]", type=options.PATH, default=Path())
@options.as_json
@guarded
def init(path: Path, *, as_json: bool) -> ExitCode:
    """Write a small workflow to start from. What is there already is never overwritten.

    A folder gets a workflow.yaml; without a word, the folder where you are.
    """
    from flowforge.cli.failures import print_json_line

    file = path if path.suffix in (".yaml", ".yml") and not path.is_dir() else path / _FILE_NAME
    _write(file)
    if as_json:
        print_json_line({"event": "init", "file": str(file)})
    else:
        click.echo(f"wrote {file}; next:")
        click.echo(f"  flowforge check {_quoted(file)}    # its problems, if it has any")
        click.echo(f"  flowforge run {_quoted(file)} -i topic=trains")
    return ExitCode.DONE


def _write(file: Path) -> None:
    from flowforge.errors import WorkflowError
    from flowforge.view.texts import reason_text

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(STARTER)
    except OSError as error:
        is_there = isinstance(error, FileExistsError) and file.exists()
        reason = "it exists already" if is_there else reason_text(error)
        raise WorkflowError(
            "WF529",
            f"{str(file)!r} cannot be written: {reason}",
            help="name another file, for example 'flowforge init first.yaml'",
        ) from error


def _quoted(file: Path) -> str:
    import shlex

    return shlex.quote(str(file))
