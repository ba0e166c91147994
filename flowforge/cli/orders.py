"""`flowforge cancel`, `pause`, `limits`, `answer` and `approve`: orders to a run that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line
from flowforge.cli.journals import journal_option, open_journal, run_argument, run_to_order

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.view.limits import LimitName


@click.command
@run_argument
@click.argument("step", required=False, shell_complete=completers.steps)
@journal_option
@options.traceback
@guarded
def cancel(
    run_id: str, step: str | None, *, journal_path: Path | None, traceback: bool
) -> ExitCode:
    """End a run early; every `finally` still runs, and 'flowforge resume' can go on with it.

    With STEP, the path of a step, a branch or a call, that alone fails and the run goes on as its
    `catch` and joins say.
    """
    if step is None:
        return _order(run_id, journal_path, order="cancel")
    return _order(run_id, journal_path, order="cancel step", path=step)


@click.command
@run_argument
@journal_option
@options.traceback
@guarded
def pause(run_id: str, *, journal_path: Path | None, traceback: bool) -> ExitCode:
    """Let a run begin nothing new; what is being written goes on to its end.

    Calls of tools and questions go on, too, and their results wait with the run. 'flowforge resume'
    lets it go on.
    """
    return _order(run_id, journal_path, order="pause")


_AMOUNT = "N|none"


@click.command
@run_argument
@click.option(
    "--concurrency", metavar=_AMOUNT, help="Texts that are written at one time; others wait."
)
@click.option("--max-tokens", metavar=_AMOUNT, help="Tokens that models write, until the run ends.")
@click.option("--max-time", metavar="DURATION|none", help="As 90s or 2h, since the run began.")
@options.as_json
@journal_option
@options.traceback
@guarded
def limits(
    run_id: str,
    *,
    concurrency: str | None,
    max_tokens: str | None,
    max_time: str | None,
    as_json: bool,
    journal_path: Path | None,
    traceback: bool,
) -> ExitCode:
    """Say what a run may use from now on, and show what it has used; without options, show it.

    A run that comes to a limit of tokens or time is cancelled: 'flowforge resume' can go on with
    it, and begins without limits. 'none' takes a limit away.
    """
    from flowforge.control.orders import send_order
    from flowforge.view.control import RunLimits
    from flowforge.view.limits import limit_rows

    given: dict[LimitName, str | None] = {
        "concurrency": concurrency,
        "max_tokens": max_tokens,
        "max_time_s": max_time,
    }
    order = {name: _limit(name, text) for name, text in given.items() if text is not None}
    with open_journal(journal_path) as journal:
        reply = send_order(journal.path, run_to_order(journal, run_id), order="limits", **order)
    if as_json:
        print_json_line({"limits": reply["limits"], "used": reply["used"]})
        return ExitCode.DONE
    for row in limit_rows(RunLimits(reply["limits"], reply["used"])).values():
        click.echo(row)
    return ExitCode.DONE


def _limit(name: LimitName, text: str) -> float | None:
    from flowforge.view.limits import limit_of

    limit = limit_of(name, text)
    if limit == "unreadable":
        option = "--" + name.removesuffix("_s").replace("_", "-")
        expected = "a duration such as 90s" if name == "max_time_s" else "a whole number from 1"
        raise click.UsageError(f"{option} must be {expected}, or none, got {text!r}")
    return limit


@click.command
@run_argument
@click.argument("step", shell_complete=completers.steps)
@click.argument("text")
@journal_option
@options.traceback
@guarded
def answer(
    run_id: str, step: str, text: str, *, journal_path: Path | None, traceback: bool
) -> ExitCode:
    """Answer the question of STEP, of a run that was started with --detach."""
    return _order(run_id, journal_path, order="answer", path=step, text=text)


@click.command
@run_argument
@click.argument("step", shell_complete=completers.steps)
@journal_option
@options.traceback
@guarded
def approve(run_id: str, step: str, *, journal_path: Path | None, traceback: bool) -> ExitCode:
    """Answer the question of STEP by its first choice."""
    from flowforge.control.orders import send_order

    with open_journal(journal_path) as journal:
        name = run_to_order(journal, run_id)
        questions = send_order(journal.path, name, order="status")["questions"]
        choices = [one["choices"] for one in questions if one["path"] == step]
        text = choices[0][0] if choices and choices[0] else "yes"
    return _order(run_id, journal_path, order="answer", path=step, text=text)


def _order(run_id: str, journal_path: Path | None, **order: object) -> ExitCode:
    from flowforge.control.orders import send_order

    with open_journal(journal_path) as journal:
        send_order(journal.path, run_to_order(journal, run_id), **order)
    return ExitCode.DONE
