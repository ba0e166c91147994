"""How a command ends when something goes wrong: one message on stderr, one documented exit code."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from typing import TYPE_CHECKING, ParamSpec

import click

from flowforge import environment
from flowforge.cli.exit_codes import ExitCode, exit_code_of, exit_code_of_run
from flowforge.cli.output_files import DISK_IS_FULL
from flowforge.cli.printing import print_note
from flowforge.errors import FlowForgeError, WorkflowError, WrongInputsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TextIO

    from flowforge.errors import Location
    from flowforge.runtime.run import RunFailedError
    from flowforge.runtime.state import Failure

P = ParamSpec("P")


def guarded(command: Callable[P, ExitCode]) -> Callable[P, None]:
    """Make a function a command: what it returns is the exit code, what it raises is told.

    Reads the options `traceback` and `as_json` of the command, if it has them.
    """

    @functools.wraps(command)
    def run_and_exit(*args: P.args, **kwargs: P.kwargs) -> None:
        with_traceback = bool(kwargs.get("traceback")) or _asks_for_traceback()
        try:
            code = command(*args, **kwargs)
            sys.stdout.flush()
        except FlowForgeError as error:
            code = report(error, as_json=bool(kwargs.get("as_json")))
            if with_traceback:
                traceback.print_exception(error)
        except click.UsageError:
            raise  # told by click, with the usage
        except BrokenPipeError:
            code = _leave_broken_pipe()
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        except Exception as error:
            code = _report_unexpected(error, as_json=bool(kwargs.get("as_json")))
            if with_traceback:
                traceback.print_exception(error)
        raise SystemExit(int(code))

    return run_and_exit


def report(error: FlowForgeError, *, as_json: bool = False) -> ExitCode:
    """Tell an error on stderr, and as a JSON line on stdout if asked; returns its exit code."""
    _tell(str(error))
    if as_json:
        for one in error.errors if isinstance(error, WrongInputsError) else (error,):
            print_json_line(
                {"event": "error", "code": one.code, "message": one.message, "help": one.help}
            )
    return exit_code_of(error)


def report_run_failure(error: RunFailedError) -> ExitCode:
    """Tell every failed step with its path; returns the exit code of the run."""
    for line in failure_lines(error.failures):
        print_note(line)
    return exit_code_of_run(tuple(failure.error for failure in error.failures))


def report_unwritable(error: OSError) -> ExitCode:
    """Tell that stdout takes nothing more; returns the exit code, of a reader that left as well."""
    if isinstance(error, BrokenPipeError):
        return _leave_broken_pipe()
    return _report_unexpected(error, as_json=False)


def failure_lines(failures: Iterable[Failure]) -> Iterator[str]:
    """What failed, where and how to mend it; what holds for several is said once, behind them.

    Branches of a step mostly fail alike: with one message, or with one place and one help.
    """
    from flowforge.language.diagnostics import few_of

    # Paths are keys, too: a run that cannot be written down fails for itself and at its end.
    kinds: dict[tuple[str, Location | None, str | None], dict[str, dict[str, None]]] = {}
    for failure in failures:
        error = failure.error
        kind = kinds.setdefault((error.code, error.location, error.help), {})
        kind.setdefault(error.message, {})[failure.path] = None
    for (code, location, help_line), message_to_paths in kinds.items():
        for message, paths in message_to_paths.items():
            yield f"error[{code}]: {few_of([*paths])}: {message}"
        if location is not None:
            yield f"  --> {location}"
        if help_line is not None:
            yield f"help: {help_line}"


def print_json_line(value: object) -> None:
    """One JSON value on one line of stdout, at once."""
    from flowforge.runtime.event_json import safe_json

    sys.stdout.write(f"{safe_json(value)}\n")
    sys.stdout.flush()


def _report_unexpected(error: Exception, *, as_json: bool) -> ExitCode:
    if isinstance(error, OSError) and error.errno in DISK_IS_FULL:
        # Of a write that failed nothing says which file it was: it may have been stdout's.
        if error.filename is None:
            _drop(sys.stdout)
        place = "" if error.filename is None else f" of {str(error.filename)!r}"
        message = f"what was to be written does not fit on the disk{place}"
        help_line = "make room there, or write elsewhere"
        return report(WorkflowError("WF539", message, help=help_line), as_json=as_json)
    # The top of the command line: whatever else comes here is ours to be told about.
    _tell(f"error[IN001]: {type(error).__name__}: {error}")
    _tell("help: this is a fault in FlowForge; --traceback shows where")
    return ExitCode.INTERNAL


def _tell(line: str) -> None:
    try:
        print_note(line)
    except OSError:
        # Stderr itself takes nothing: the exit code is all that can still be said.
        _drop(sys.stderr)


def _asks_for_traceback() -> bool:
    return environment.TRACEBACK.text() not in {"", "0"}


def _leave_broken_pipe() -> ExitCode:
    _drop(sys.stdout)
    return ExitCode.BROKEN_PIPE


def _drop(stream: TextIO) -> None:
    # Python flushes streams at exit and would complain a second time.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
