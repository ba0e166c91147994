"""`flowforge tui`: the viewer on the list of runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.journals import journal_option

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., object]")


def viewer_options(command: Command) -> Command:
    """The options of the viewer itself, as `is_ascii`, `no_mouse` and `keymap`."""
    for option in (
        click.option(
            "--keymap",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="A JSON file of key ids to keys; without it keys.json in your config folder.",
        ),
        click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal."),
        click.option("--ascii", "is_ascii", is_flag=True, help="Draw with ASCII characters only."),
    ):
        command = option(command)
    return command


@click.command
@journal_option
@click.option(
    "--events",
    type=options.PATH,
    metavar="FILE",
    help="Show recorded events instead: a file that 'flowforge run --json' has written.",
)
@viewer_options
@options.traceback
@guarded
def tui(
    *,
    journal_path: Path | None,
    events: Path | None,
    is_ascii: bool,
    no_mouse: bool,
    keymap: Path | None,
    traceback: bool,
) -> ExitCode:
    """Show runs full screen: those that go on and those of the journal.

    For screen readers: 'flowforge runs', 'flowforge show' and 'flowforge watch --display plain'.
    """
    from flowforge.cli.terminal import is_terminal, view

    if not is_terminal():
        raise click.UsageError("the viewer needs a terminal; 'flowforge runs' lists runs without")
    arguments = viewer_arguments(journal_path, keymap, is_ascii=is_ascii, no_mouse=no_mouse)
    if events is not None:
        arguments += ["--events", str(events)]
    return ExitCode(view(arguments))


def viewer_arguments(
    journal_path: Path | None, keymap: Path | None, *, is_ascii: bool, no_mouse: bool
) -> list[str]:
    """The same options for the viewer's process."""
    arguments: list[str] = []
    if journal_path is not None:
        arguments += ["--journal", str(journal_path.expanduser().absolute())]
    if keymap is not None:
        arguments += ["--keymap", str(keymap)]
    if is_ascii or not _writes_unicode():
        arguments.append("--ascii")
    if no_mouse:
        arguments.append("--no-mouse")
    return arguments


def _writes_unicode() -> bool:
    return sys.stdout.encoding.lower().replace("-", "") == "utf8"
