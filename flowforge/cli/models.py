"""`flowforge models`: the models on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line

app = typer.Typer(help="List, fetch and find models.", no_args_is_help=True, rich_markup_mode=None)

_Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[DIR|GGUF|HF_ID]", help="Without it the default model.", show_default=False
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
_Traceback = Annotated[
    bool, typer.Option("--traceback", help="Show where in FlowForge an error came from.")
]


@app.command("list")
@guarded
def list_(as_json: _AsJson = False, traceback: _Traceback = False) -> ExitCode:
    """List the models that are on this machine."""
    from flowforge.engine.model_store import list_models

    locations = list_models()
    if as_json:
        for location in locations:
            print_json_line(_as_json(location.name, location.revision, location.directory))
        return ExitCode.DONE
    if not locations:
        typer.echo("no models yet; 'flowforge models pull' fetches the default one", err=True)
    for location in locations:
        typer.echo(f"{location.name}  {location.revision}  {location.directory}")
    return ExitCode.DONE


@app.command("pull")
@guarded
def pull(model: _Model = None, as_json: _AsJson = False, traceback: _Traceback = False) -> ExitCode:
    """Fetch a model now, so that later runs need no network; prints its directory."""
    from flowforge.cli.download import DownloadProgress
    from flowforge.engine.model_store import pull as pull_model

    with DownloadProgress(is_quiet=as_json) as progress:
        location = pull_model(model, progress=progress)
    if as_json:
        print_json_line(_as_json(location.name, location.revision, location.directory))
    else:
        typer.echo(location.directory)
    return ExitCode.DONE


@app.command("path")
@guarded
def path(model: _Model = None, as_json: _AsJson = False, traceback: _Traceback = False) -> ExitCode:
    """Print the directory of a model that is on this machine."""
    from flowforge.engine.model_store import path as path_of_model

    location = path_of_model(model)
    if as_json:
        print_json_line(_as_json(location.name, location.revision, location.directory))
    else:
        typer.echo(location.directory)
    return ExitCode.DONE


def _as_json(name: str, revision: str, directory: object) -> dict[str, str]:
    return {"name": name, "revision": revision, "directory": str(directory)}
