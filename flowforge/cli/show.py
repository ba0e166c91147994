"""`flowforge show`: a run of the journal, or one of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line
from flowforge.cli.journals import journal_option, open_journal, run_argument
from flowforge.cli.printing import print_text
from flowforge.errors import WorkflowError
from flowforge.journal.lease import state_of

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.runtime.history import RunHistory


@click.command
@run_argument
@click.argument("step", required=False, shell_complete=completers.steps)
@journal_option
@options.as_json
@options.traceback
@guarded
def show(
    run_id: str,
    step: str | None,
    *,
    journal_path: Path | None,
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Show a run: its steps and what it came to.

    With STEP, as in 'explore[1]/draft': each try with the prompt as it was sent, the values in it
    marked, the answer, tokens, time and errors.
    """
    from flowforge.cli.history_text import (
        run_json,
        run_text,
        step_json,
        step_text,
        tries_and_samples_of,
    )
    from flowforge.runtime.history import history_of

    with open_journal(journal_path) as journal:
        run = history_of(journal, run_id)
        state = state_of(journal, run.row)
        if step is not None and not tries_and_samples_of(run, step):
            raise _unknown_step(run, step)
        if as_json:
            print_json_line(run_json(run, state) if step is None else step_json(run, step))
        else:
            print_text(run_text(run, state) if step is None else step_text(run, step))
    return ExitCode.DONE


def _unknown_step(run: RunHistory, step: str) -> WorkflowError:
    from flowforge.language.diagnostics import near_miss

    miss = near_miss(step, run.picture.steps)
    return WorkflowError(
        "WF705",
        f"run {run.row.run_id!r} has no step {step!r}",
        help=f"did you mean {miss!r}?" if miss else f"flowforge show {run.row.run_id} lists them",
    )
