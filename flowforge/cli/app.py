"""The commands of `flowforge`, put together; each has a file of its own."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Generator

# Where each command is: a file is imported when its command is asked for, or for all of the help.
COMMANDS = {
    "run": "flowforge.cli.run:run",
    "resume": "flowforge.cli.resume:resume",
    "map": "flowforge.cli.map:map_",
    "rerun": "flowforge.cli.rerun:rerun",
    "runs": "flowforge.cli.runs:runs",
    "ps": "flowforge.cli.ps:ps",
    "cancel": "flowforge.cli.orders:cancel",
    "pause": "flowforge.cli.orders:pause",
    "limits": "flowforge.cli.orders:limits",
    "answer": "flowforge.cli.orders:answer",
    "approve": "flowforge.cli.orders:approve",
    "tui": "flowforge.cli.tui:tui",
    "watch": "flowforge.cli.watch:watch",
    "show": "flowforge.cli.show:show",
    "diff": "flowforge.cli.diff:diff",
    "export": "flowforge.cli.export:export",
    "check": "flowforge.cli.check:check",
    "explain": "flowforge.cli.explain:explain",
    "graph": "flowforge.cli.graph:graph",
    "init": "flowforge.cli.init:init",
    "plan": "flowforge.cli.plan:plan",
    "schema": "flowforge.cli.schema:schema",
    "grammar": "flowforge.cli.grammar:grammar",
    "models": "flowforge.cli.models:models",
    "doctor": "flowforge.cli.doctor:doctor",
    "completion": "flowforge.cli.completion:completion",
    "serve": "flowforge.cli.serve:serve",
    "keys": "flowforge.cli.keys:keys",
    "report": "flowforge.cli.report:report",
    "bench": "flowforge.cli.bench:bench",
}


class CommandGroup(click.Group):
    """Commands that are imported when they are used.

    Help that cannot be written ends as a command's output does, with a message and its exit code.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the arguments; prints the help of all, or the version."""
        with _unwritable_help_ends():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Read the arguments of the command, and run it; prints its help."""
        with _unwritable_help_ends():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, in the order of the help."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, if there is one."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments begin with. Raises UsageError with the near miss."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from flowforge.language.diagnostics import near_miss

            miss = near_miss(args[0], COMMANDS)
            if miss is not None:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {miss!r}?")
        return super().resolve_command(ctx, args)


@contextmanager
def _unwritable_help_ends() -> Generator[None]:
    try:
        yield
    except OSError as error:  # what commands raise themselves is told by `failures.guarded`
        from flowforge.cli.failures import report_unwritable

        raise SystemExit(int(report_unwritable(error))) from error


def _print_version(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        click.echo(f"flowforge {version('flowforge')}")
        ctx.exit()


@click.group(
    name="flowforge",
    cls=CommandGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version.",
)
def app() -> None:
    """Run agent workflows on a language model in the same process."""
