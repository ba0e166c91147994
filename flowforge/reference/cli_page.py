"""The page of the commands, made from the command line itself."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

from flowforge.cli.app import app
from flowforge.cli.exit_codes import MEANINGS
from flowforge.reference.markdown import MADE, code, paragraphs, table

if TYPE_CHECKING:
    from collections.abc import Iterator

_ARGUMENTS = {
    "answer": {"text": "What is said."},
    "bench figures": {"files": "Files of `bench … --json`."},
    "bench page": {"files": "Files of `bench … --json`."},
    "bench serve": {"url": "The server, up to and with `/v1`."},
    "check": {"files": "Workflow files, one or more."},
    "completion": {"shell": "`bash`, `zsh` or `fish`."},
    "diff": {"one": "A run's name, or its beginning.", "other": "Another one."},
    "explain": {"codes": "One or more, as `WF202`; without one, all are listed."},
    "grammar": {
        "file": "A Lark grammar, or the name of one that comes with FlowForge.",
        "text": "A text that the grammar may take; without it, stdin.",
    },
    "init": {"path": "Where to: a folder or a file; without it, the folder where you are."},
    "keys": {"name": "Whose key."},
    "map": {
        "file": "A workflow file, or `FILE.py:NAME`.",
        "rows": "Inputs: an object of JSON on each line.",
    },
    "models": {"model": "A directory, GGUF file or Hugging Face id; else the default model."},
    "run": {"file": "A workflow file, or `FILE.py:NAME`, a flow of a Python file."},
}
"""What arguments are, by the beginning of the command: click keeps no word on them."""
_COMMON_ARGUMENTS = {
    "file": "A workflow file.",
    "run_id": "A run's name, or its beginning; `flowforge runs` lists them.",
    "step": "The path of a step, as `explore[1]/draft`.",
}

_GLANCE = """\
flowforge init first.yaml               # a small workflow to start from
flowforge check workflows/analyst.yaml  # every problem of the file, with line, column and help
flowforge plan workflows/analyst.yaml   # tokens, reuse, KV pages, the longest chain, before a run
flowforge run workflows/analyst.yaml    # the result on stdout, progress on stderr
flowforge run FILE.py:NAME              # a workflow written as a Python function
flowforge run FILE -i text=@notes.txt   # an input from a file
flowforge run FILE --tui                # full screen; leaving the viewer leaves the run going
flowforge run FILE --model WHICH        # a directory, a GGUF file or a Hugging Face id
flowforge run FILE --detach             # in the background; ps, watch, answer and cancel find it
flowforge runs                          # what ran; show, diff, export and rerun take a name of it
flowforge resume                        # go on with a run that was cut, failed or cancelled
flowforge map FILE ROWS.jsonl -o OUT    # once for every row, in order; goes on where it was cut
flowforge serve --workflows DIR         # the model as the OpenAI API has it, and workflows
flowforge doctor                        # what this machine lacks, with a fix for each
flowforge completion bash               # words, files and runs by TAB"""


def cli_page() -> str:
    """Every command with its arguments and options, then what exit codes mean."""
    commands = "\n\n".join(_section(path, command) for path, command in commands_of(app))
    listed = table(
        ("command", "what it does"),
        (
            (f"[`flowforge {path}`](#flowforge-{path.replace(' ', '-')})", _first_line(command))
            for path, command in commands_of(app)
        ),
    )
    codes = table(("code", "meaning"), ((str(int(one)), what) for one, what in MEANINGS.items()))
    return f"""# Commands

{MADE}

```sh
{_GLANCE}
```

{listed}

`flowforge COMMAND --help` says the same in a terminal, also as `-h`. Results go to stdout, all else
to stderr. Options that may stand in the environment say so; [configuration](configuration.md) has
all variables.

Every run is written down as it goes, in `runs.db` of your state folder, readable by you alone.
Whatever ends it, `flowforge resume` goes on with it: what was completed is not done again, and a
text that was cut goes on behind its last word.

## Exit codes

{codes}

{commands}
"""


def commands_of(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that can be seen, groups before what is in them, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        words = f"{path} {name}".strip()
        yield words, command
        if isinstance(command, click.Group):
            yield from commands_of(command, words)


def argument_meaning(path: str, name: str) -> str:
    """What an argument of a command is. Raises LookupError for one that nobody has told of."""
    words = path.split(" ")
    for length in range(len(words), 0, -1):
        told = _ARGUMENTS.get(" ".join(words[:length]), {})
        if name in told:
            return told[name]
    return _COMMON_ARGUMENTS[name]


def told_arguments() -> dict[str, set[str]]:
    """The arguments that are told of, by the beginning of their commands."""
    return {begun: {*told} for begun, told in _ARGUMENTS.items()}


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"flowforge {path}")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        f"## flowforge {path}",
        f"```text\nflowforge {path} {usage}\n```",
        paragraphs(inspect.cleandoc(command.help or "")),
    ]
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    if arguments:
        rows = (
            (code(one.make_metavar(context)), argument_meaning(path, one.name or ""))
            for one in arguments
        )
        parts.append(table(("argument", "what it is"), rows))
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        head = ("option", "default", "what it says")
        parts.append(table(head, (_option(one, context) for one in options)))
    return "\n\n".join(parts)


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join(sorted([*option.opts, *option.secondary_opts], key=len, reverse=True))
    value = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
    variable = f" Variable: `{option.envvar}`." if isinstance(option.envvar, str) else ""
    return code(f"{names}{value}"), _default(option, context), f"{option.help or ''}{variable}"


def _default(option: click.Option, context: click.Context) -> str:
    default = option.get_default(context)
    is_told = isinstance(default, str | int | float) and default not in (False, "")
    return code(str(default)) if is_told else ""


def _first_line(command: click.Command) -> str:
    return paragraphs(inspect.cleandoc(command.help or "")).partition("\n")[0].partition(". ")[0]
