"""`flowforge rerun`: a new run that takes over an earlier one up to a step."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.journals import journal_option, open_journal, run_argument
from flowforge.cli.logs import log_options

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.cli.logs import LogOptions


@click.command
@run_argument
@click.option(
    "--from",
    "step",
    required=True,
    metavar="STEP",
    shell_complete=completers.steps,
    help="The first step to run again.",
)
@click.option("--seed", type=int, metavar="N", help="For what is run again; else the run's own.")
@journal_option
@options.display
@log_options
@options.detached
@options.traceback
@guarded
def rerun(
    run_id: str,
    *,
    step: str,
    seed: int | None,
    journal_path: Path | None,
    display: options.Display,
    as_json: bool,
    is_quiet: bool,
    detach: bool,
    waits_for_answers: bool,
    log: LogOptions | None,
    traceback: bool,
) -> ExitCode:
    """Run again from a step, with the results that came before it.

    A new run: the old one stays as it was. The workflow is taken as it is now; what is taken over
    must be as it was.
    """
    from flowforge.cli.detached import run_detached
    from flowforge.cli.journals import begun_run, options_of
    from flowforge.cli.session import Session
    from flowforge.cli.workflows import launch_of
    from flowforge.journal.names import new_run_id
    from flowforge.journal.writer import JournalWriter
    from flowforge.runtime.run_journal import RunJournal

    with ExitStack() as stack:
        journal = stack.enter_context(open_journal(journal_path))
        row = journal.run(run_id)
        if detach:
            return run_detached(journal.path)
        begun = row.begun if seed is None else replace(row.begun, seed=seed)
        session = options_of(
            row, answers={}, display=display, waits_for_answers=waits_for_answers, log=log
        )
        launch = launch_of(begun, as_json=as_json)
        if launch is None:
            return ExitCode.WORKFLOW
        run = RunJournal.rerun(
            JournalWriter(journal),
            row.run_id,
            new_run_id(),
            begun_run(launch, session, time.time()),
            step,
        )
        stack.enter_context(run)
        return Session(launch, session, lambda: run, journal.path).run()
