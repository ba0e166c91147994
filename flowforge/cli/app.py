"""The commands of `flowforge`, put together; each has a file of its own."""

from __future__ import annotations

import typer

from flowforge.cli import check, graph, init, models, plan, run, schema

app = typer.Typer(
    name="flowforge",
    help="Run agent workflows on a language model in the same process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: importing rich for it would double the time of `--help`.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("check")(check.check)
app.command("graph")(graph.graph)
app.command("init")(init.init)
app.command("plan")(plan.plan)
app.command("schema")(schema.schema)
app.add_typer(models.app, name="models")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"flowforge {version('flowforge')}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Run agent workflows on a language model in the same process."""
    del version
