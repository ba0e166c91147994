"""`flowforge resume`: go on with a run that was cut, failed or cancelled."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.journals import journal_option
from flowforge.cli.logs import log_options
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.cli.logs import LogOptions
    from flowforge.journal.journal import Journal
    from flowforge.runtime.uncertainty import OnUncertain


@click.command
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=completers.runs)
@journal_option
@click.option(
    "--answers",
    "answers_file",
    type=options.PATH,
    metavar="FILE",
    help="Answers by step path, besides those that the run was begun with.",
)
@click.option(
    "--on-uncertain",
    type=click.Choice(["ask", "retry", "fail"]),
    help="What to do about calls that may have done their work, whatever their tools say.",
)
@options.no_cache
@options.explain_cache
@options.display
@log_options
@options.detached
@options.traceback
@guarded
def resume(
    run_id: str | None,
    *,
    journal_path: Path | None,
    answers_file: Path | None,
    on_uncertain: OnUncertain | None,
    no_cache: bool,
    explain_cache: bool,
    display: options.Display,
    as_json: bool,
    is_quiet: bool,
    detach: bool,
    waits_for_answers: bool,
    log: LogOptions | None,
    traceback: bool,
) -> ExitCode:
    """Go on with a run where it stopped; without RUN, the newest that is not done.

    What was completed is not done again, and a text that was cut goes on behind its last word. Of a
    run that failed, the steps that failed are tried again. One that is paused goes on where it is.
    """
    from flowforge.cli.answers import read_answers
    from flowforge.cli.detached import run_detached
    from flowforge.cli.journals import newest_unfinished, open_journal, options_of
    from flowforge.cli.session import Session
    from flowforge.cli.workflows import launch_of
    from flowforge.journal.writer import JournalWriter
    from flowforge.runtime.run_journal import RunJournal

    if explain_cache and no_cache:
        raise click.UsageError("--explain-cache needs the cache: no --no-cache")
    answers = read_answers(answers_file)
    with ExitStack() as stack:
        journal = stack.enter_context(open_journal(journal_path))
        journal.require_sound()
        if run_id is not None and _lets_go_on(journal, run_id):
            return ExitCode.DONE
        row = journal.run(run_id or newest_unfinished(journal))
        if detach:
            return run_detached(journal.path)
        session = options_of(
            row,
            answers=answers,
            display=display,
            waits_for_answers=waits_for_answers,
            explains_cache=explain_cache,
            log=log,
        )
        launch = launch_of(row.begun, as_json=as_json)
        if launch is None:
            return ExitCode.WORKFLOW
        run = RunJournal.resume(
            JournalWriter(journal), row.run_id, launch.definitions, on_uncertain=on_uncertain
        )
        stack.enter_context(run)
        if no_cache:
            run.cache = None
        return Session(launch, session, lambda: run, journal.path).run()


def _lets_go_on(journal: Journal, run_id: str) -> bool:
    """Let a run go on that a process has paused; whether there is one."""
    from flowforge.cli.journals import run_to_order
    from flowforge.control.orders import send_order

    name = run_to_order(journal, run_id)
    try:
        if not send_order(journal.path, name, order="status")["is_paused"]:
            return False
        send_order(journal.path, name, order="go on")
    except EngineError:
        # Nobody has it, so that it can be gone on with here.
        return False
    click.echo(f"{name} goes on", err=True)
    return True
