"""`flowforge keys`: who may ask a server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.printing import print_note, print_text
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.serving.keys import Key

_file = click.option(
    "--file",
    "-f",
    type=options.PATH,
    default=Path("keys.toml"),
    show_default=True,
    metavar="FILE",
    help="The file of keys; 'flowforge serve --keys' takes it.",
)
_name = click.argument("name", metavar="NAME")
_AT_LEAST_ONE = click.IntRange(min=1)


@click.group(no_args_is_help=True)
def keys() -> None:
    """Make, list and revoke the keys of 'flowforge serve'."""


@keys.command("add")
@_name
@_file
@click.option("--requests-per-minute", type=_AT_LEAST_ONE, metavar="N", help="At most.")
@click.option("--concurrent", type=_AT_LEAST_ONE, metavar="N", help="Requests at a time, at most.")
@options.traceback
@guarded
def add(
    name: str,
    *,
    file: Path,
    requests_per_minute: int | None,
    concurrent: int | None,
    traceback: bool,
) -> ExitCode:
    """Make a key for NAME and print it: the file keeps its hash alone."""
    from flowforge.serving.keys import Key, digest_of, is_key_name, new_key, read_keys

    if not is_key_name(name):
        raise click.UsageError(
            f"{name!r} is no name of a key: expected letters, digits, '_', '.', '@' and '-'"
        )
    known = read_keys(file) if file.exists() else ()
    if any(one.name == name for one in known):
        raise click.UsageError(f"{str(file)!r} has a key for {name!r}: revoke it first")
    secret = new_key()
    _write(file, (*known, Key(name, digest_of(secret), requests_per_minute, concurrent)))
    print_text(f"{secret}\n")
    print_note(f"this is the only time that the key is shown; {file} has its hash")
    return ExitCode.DONE


@keys.command("list")
@_file
@options.traceback
@guarded
def list_(*, file: Path, traceback: bool) -> ExitCode:
    """List who has a key."""
    from flowforge.serving.keys import read_keys

    for one in read_keys(file):
        limits = [
            f"{value} {what}"
            for value, what in (
                (one.requests_per_minute, "requests a minute"),
                (one.concurrent, "at a time"),
            )
            if value is not None
        ]
        print_text("  ".join([one.name, *limits]) + "\n")
    return ExitCode.DONE


@keys.command("revoke")
@_name
@_file
@options.traceback
@guarded
def revoke(name: str, *, file: Path, traceback: bool) -> ExitCode:
    """Take NAME's key out: servers that read the file refuse it at once."""
    from flowforge.serving.keys import read_keys

    known = read_keys(file)
    left = [one for one in known if one.name != name]
    if len(left) == len(known):
        there = ", ".join(one.name for one in known) or "nobody"
        raise click.UsageError(f"{str(file)!r} has no key for {name!r}; it has {there}")
    _write(file, left)
    return ExitCode.DONE


def _write(file: Path, kept: Iterable[Key]) -> None:
    """Replace the file as a whole: a server may read it at any time. Raises EngineError EN911."""
    from flowforge.serving.keys import read_keys, written

    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            stream.write(written(kept))
        read_keys(new)  # what cannot be read again replaces nothing
        new.replace(file)
    except OSError as error:
        raise EngineError(
            "EN911", f"the file of keys {str(file)!r} cannot be written: {error.strerror}"
        ) from error
    finally:
        new.unlink(missing_ok=True)
