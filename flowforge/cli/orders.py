"""`flowforge cancel`, `pause`, `limits`, `answer` and `approve`: orders to a run that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line
from flowforge.cli.journals import journal_option, open_journal, run_argument, run_to_order

if TYPE_CHECKING:
    from pathlib import Path


@click.command
@run_argument
@click.argument("step", required=False)
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

    given = {"concurrency": concurrency, "max_tokens": max_tokens}
    order: dict[str, object] = {name: _count(name, text) for name, text in given.items() if text}
    if max_time is not None:
        order["max_time_s"] = _seconds(max_time)
    with open_journal(journal_path) as journal:
        reply = send_order(journal.path, run_to_order(journal, run_id), order="limits", **order)
    if as_json:
        print_json_line({"limits": reply["limits"], "used": reply["used"]})
        return ExitCode.DONE
    for name, (title, unit) in _SHOWN.items():
        limit = reply["limits"][name]
        at_most = "no limit" if limit is None else f"at most {limit:,g}{unit}"
        click.echo(f"{title:12} {reply['used'][name]:,g}{unit}, {at_most}")
    return ExitCode.DONE


_SHOWN = {
    "concurrency": ("writing now", ""),
    "max_tokens": ("tokens", ""),
    "max_time_s": ("time", " s"),
}


def _count(name: str, text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or int(text) < 1:
        option = f"--{name.replace('_', '-')}"
        raise click.UsageError(f"{option} must be a whole number from 1, or none, got {text!r}")
    return int(text)


def _seconds(text: str) -> float | None:
    from flowforge.language.durations import seconds_of_text

    if text == "none":
        return None
    seconds = seconds_of_text(text)
    if not seconds:
        raise click.UsageError(f"--max-time must be a duration such as 90s, or none, got {text!r}")
    return seconds


@click.command
@run_argument
@click.argument("step")
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
@click.argument("step")
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
