"""`flowforge init`: workflows to start from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line
from flowforge.cli.printing import print_note
from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Beside the workflow and not at an address: it is that of the version which is installed, editors
# need no network for it, and a path in the first line counts from the workflow.
SCHEMA_FILE = "flowforge.schema.json"


@dataclass(frozen=True, slots=True)
class Template:
    """A workflow to start from.

    main: its file among those of `flowforge.cli.templates`. target: what `flowforge run` is given
    behind the file. example: an input. beside: files that it needs under their own names.
    """

    what: str
    main: str
    example: str
    target: str = ""
    beside: tuple[str, ...] = ()

    @property
    def suffix(self) -> str:
        """Of its file."""
        return Path(self.main).suffix


TEMPLATES = {
    "starter": Template(
        "a list, a branch for each of its items, and a text made of all",
        "starter.yaml",
        "topic=trains",
    ),
    "agent": Template(
        "a model that calls a Python function before it answers",
        "agent.yaml",
        "question='Is there snow in Oslo?'",
        beside=("weather.py",),
    ),
    "extraction": Template(
        "a text becomes a form whose every field fits",
        "extraction.yaml",
        "letter='Ben Ray here, I need one desk today.'",
    ),
    "critique": Template(
        "a text that is judged and written again until it is good",
        "critique.yaml",
        "product='a quiet kettle'",
    ),
    "approval": Template(
        "a person decides before a result goes out",
        "approval.yaml",
        "news='The pool is closed on Friday.'",
    ),
    "flow": Template(
        "the starter as a Python function",
        "flow.py",
        "topic=trains",
        target=":advice",
    ),
}


@click.command
@click.argument("path", metavar="[DIR|FILE]", type=options.PATH, default=Path())
@click.option(
    "--template",
    "-t",
    type=click.Choice([*TEMPLATES]),
    default="starter",
    show_default=True,
    help="What to start from; --list says what they are.",
)
@click.option("--list", "is_list", is_flag=True, help="List the templates, and write nothing.")
@options.as_json
@guarded
def init(path: Path, *, template: str, is_list: bool, as_json: bool) -> ExitCode:
    """Write a small workflow to start from. What is there already is never overwritten.

    A folder gets a workflow.yaml, or a workflow.py; without a word, the folder where you are.
    Beside a workflow file stands flowforge.schema.json, by which editors complete and check it.
    """
    if is_list:
        return _list(as_json=as_json)
    chosen = TEMPLATES[template]
    file = _file_of(path, chosen)
    written = {file: chosen.main, **{file.with_name(name): name for name in chosen.beside}}
    help = f"name another place, for example '{_example_of_another(file, template)}'"
    _write({target: _text_of(name) for target, name in written.items()}, help)
    schema = file.with_name(SCHEMA_FILE)
    is_new_schema = file.suffix != ".py" and _write_schema(schema, help)
    files = [*written, schema] if is_new_schema else [*written]
    if as_json:
        print_json_line({"event": "init", "file": str(file), "files": [str(one) for one in files]})
        return ExitCode.DONE
    click.echo(f"wrote {_listed(files)}; next:")
    if file.suffix != ".py":
        click.echo(f"  flowforge check {_quoted(file)}    # its problems, if it has any")
    click.echo(f"  flowforge run {_quoted(file)}{chosen.target} -i {chosen.example}")
    return ExitCode.DONE


def _list(*, as_json: bool) -> ExitCode:
    for name, template in TEMPLATES.items():
        if as_json:
            print_json_line({"event": "template", "name": name, "what": template.what})
        else:
            click.echo(f"{name:10}  {template.what}")
    return ExitCode.DONE


def _file_of(path: Path, template: Template) -> Path:
    """Where the workflow is written. Raises UsageError for a name that is no such file's."""
    suffixes = (".py",) if template.suffix == ".py" else (".yaml", ".yml")
    if path.is_dir() or path.suffix not in (".py", ".yaml", ".yml"):
        return path / f"workflow{template.suffix}"
    if path.suffix not in suffixes:
        raise click.UsageError(
            f"the template is a {template.suffix} file, and the file is called {path.name!r}"
        )
    return path


def _text_of(name: str) -> str:
    from importlib import resources

    return resources.files("flowforge.cli.templates").joinpath(name).read_text(encoding="utf-8")


def _example_of_another(file: Path, template: str) -> str:
    """The same command with another place; a folder where files under fixed names come along."""
    chosen = TEMPLATES[template]
    name = "second" if "first" in {file.stem, file.parent.name} else "first"
    option = "" if template == "starter" else f"-t {template} "
    return f"flowforge init {option}{name}{'' if chosen.beside else chosen.suffix}"


def _write(texts: Mapping[Path, str], help: str) -> None:
    """The files, and none where one is there already. Raises WorkflowError WF529."""
    for file in texts:
        if file.exists():
            raise _refused(file, "it exists already", help)
    for file, text in texts.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
        except OSError as error:
            from flowforge.view.texts import reason_text

            raise _refused(file, reason_text(error), help) from error


def _refused(file: Path, reason: str, help: str) -> WorkflowError:
    return WorkflowError("WF529", f"{str(file)!r} cannot be written: {reason}", help=help)


def _write_schema(file: Path, help: str) -> bool:
    """Write the schema for editors, unless it is there; whether it was written.

    One of another version is left, and told.
    """
    from flowforge.cli.schema import schema_text

    text = schema_text()
    if not file.exists():
        _write({file: text}, help)
        return True
    if file.read_bytes() != text.encode():
        print_note(f"note: {file} is not this version's; 'flowforge schema > {file}' renews it")
    return False


def _listed(files: Iterable[Path]) -> str:
    *first, last = map(str, files)
    return f"{', '.join(first)} and {last}" if first else last


def _quoted(file: Path) -> str:
    import shlex

    return shlex.quote(str(file))
