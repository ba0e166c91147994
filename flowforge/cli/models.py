"""`flowforge models`: the models on this machine."""

from __future__ import annotations

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line

_model = click.argument(
    "model", metavar="[DIR|GGUF|HF_ID]", required=False, shell_complete=completers.models
)


@click.group(no_args_is_help=True)
def models() -> None:
    """List, fetch and find models."""


@models.command("list")
@options.as_json
@options.traceback
@guarded
def list_(*, as_json: bool, traceback: bool) -> ExitCode:
    """List the models that are on this machine."""
    from flowforge.engine.model_store import list_models

    locations = list_models()
    if as_json:
        for location in locations:
            print_json_line(_as_json(location.name, location.revision, location.directory))
        return ExitCode.DONE
    if not locations:
        click.echo("no models yet; 'flowforge models pull' fetches the default one", err=True)
    for location in locations:
        click.echo(f"{location.name}  {location.revision}  {location.directory}")
    return ExitCode.DONE


@models.command("pull")
@_model
@options.as_json
@options.traceback
@guarded
def pull(model: str | None, *, as_json: bool, traceback: bool) -> ExitCode:
    """Fetch a model, so that later runs need no network; prints its directory.

    Without a word, the default model.
    """
    from flowforge.cli.download import DownloadProgress
    from flowforge.engine.model_store import pull as pull_model

    with DownloadProgress(is_quiet=as_json) as progress:
        location = pull_model(model, progress=progress)
    if as_json:
        print_json_line(_as_json(location.name, location.revision, location.directory))
    else:
        click.echo(location.directory)
    return ExitCode.DONE


@models.command("path")
@_model
@options.as_json
@options.traceback
@guarded
def path(model: str | None, *, as_json: bool, traceback: bool) -> ExitCode:
    """Print the directory of a model that is on this machine.

    Without a word, of the default model.
    """
    from flowforge.engine.model_store import path as path_of_model

    location = path_of_model(model)
    if as_json:
        print_json_line(_as_json(location.name, location.revision, location.directory))
    else:
        click.echo(location.directory)
    return ExitCode.DONE


def _as_json(name: str, revision: str, directory: object) -> dict[str, str]:
    return {"name": name, "revision": revision, "directory": str(directory)}
