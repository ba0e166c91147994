"""Options that several commands have, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., object]")

# Whether a file can be read is told by what reads it, with a code and a help line.
PATH = click.Path(path_type=Path)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
traceback = click.option(
    "--traceback", is_flag=True, help="Show where in FlowForge an error came from."
)
model = click.option(
    "--model",
    "-m",
    metavar="DIR|GGUF|HF_ID",
    help="A model directory, GGUF file or Hugging Face id; without it the model under the file's "
    "defaults, or the default model.",
)
_one_input = click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input; may be repeated. NAME=@FILE takes the text of a file.",
)
_inputs_file = click.option(
    "--inputs",
    "inputs_file",
    type=PATH,
    metavar="FILE",
    help="A JSON file with an object of inputs.",
)


def inputs(command: Command) -> Command:
    """The options that give a workflow's inputs, as `inputs` and `inputs_file`."""
    return _one_input(_inputs_file(command))
