"""The log of `run`, `resume`, `rerun` and `map`: its options, and where its lines go."""

from __future__ import annotations

import functools
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from flowforge.telemetry.run_log import LogFormat, LogLevel, RunLog

Command = TypeVar("Command", bound="Callable[..., object]")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What the command line said about a log. file: None is stderr."""

    file: Path | None = None
    format: LogFormat = "text"
    level: LogLevel = "info"
    with_values: bool = False

    @property
    def takes_stderr(self) -> bool:
        """Whether progress must leave stderr to the log."""
        return self.file is None


_OPTIONS = (
    click.option(
        "--log-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Log the run to the end of FILE; stderr without it, if another --log option is given.",
    ),
    click.option(
        "--log-format", type=click.Choice(["text", "json"]), help="How a line is written."
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="Of the least important lines; info without it.",
    ),
    click.option(
        "--log-values", is_flag=True, help="Log inputs, prompts of questions and results, too."
    ),
)


def log_options(command: Command) -> Command:
    """The options of a log, as `log`: `LogOptions`, or None where none of them is given."""

    @functools.wraps(command)
    def with_log(*args: Any, **kwargs: Any) -> object:
        file, form, level, with_values = (
            kwargs.pop(name) for name in ("log_file", "log_format", "log_level", "log_values")
        )
        is_asked_for = any((file, form, level, with_values))
        options = LogOptions(file, form or "text", level or "info", with_values)
        return command(*args, log=options if is_asked_for else None, **kwargs)

    decorated: object = with_log
    for option in reversed(_OPTIONS):
        decorated = option(cast("Any", decorated))
    return cast("Command", decorated)


@contextmanager
def open_log(options: LogOptions | None) -> Generator[RunLog | None]:
    """The log that the options ask for. Raises EngineError EN803 for a file that is not to be had.

    A file is its owner's alone. Where it cannot be written later, that is said once, and the run
    goes on.
    """
    if options is None:
        yield None
        return
    from flowforge.telemetry.run_log import RunLog

    descriptor = 2 if options.file is None else _open(options.file)
    sink = _Sink(descriptor, options.file)
    try:
        yield RunLog(
            sink.write,
            time.time,
            format=options.format,
            level=options.level,
            with_values=options.with_values,
        )
    finally:
        if options.file is not None:
            os.close(descriptor)


class _Sink:
    """Writes whole lines, each at once, so that processes may share a file."""

    def __init__(self, descriptor: int, file: Path | None) -> None:
        self._descriptor = descriptor
        self._file = file
        self._is_broken = False

    def write(self, line: str) -> None:
        if self._file is None:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
            return
        try:
            os.write(self._descriptor, line.encode("utf-8", "backslashreplace") + b"\n")
        except OSError as error:
            if not self._is_broken:
                self._is_broken = True
                reason = error.strerror or str(error)
                sys.stderr.write(f"the log {str(self._file)!r} lacks lines: {reason}\n")


def _open(file: Path) -> int:
    try:
        return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EngineError(
            "EN803",
            f"the log {str(file)!r} cannot be written: {error.strerror or error}",
            help="name another file by --log-file, or leave it out for stderr",
        ) from error
