"""`flowforge cancel`, `answer` and `approve`: orders to a run that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.journals import journal_option, open_journal, run_argument

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
        name = journal.run(run_id).run_id
        questions = send_order(journal.path, name, order="status")["questions"]
        choices = [one["choices"] for one in questions if one["path"] == step]
        text = choices[0][0] if choices and choices[0] else "yes"
    return _order(run_id, journal_path, order="answer", path=step, text=text)


def _order(run_id: str, journal_path: Path | None, **order: object) -> ExitCode:
    from flowforge.control.orders import send_order

    with open_journal(journal_path) as journal:
        send_order(journal.path, journal.run(run_id).run_id, **order)
    return ExitCode.DONE
