"""`flowforge export`: a run of the journal as one document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.journals import journal_option, open_journal, run_argument
from flowforge.cli.printing import print_text
from flowforge.journal.lease import state_of

if TYPE_CHECKING:
    from pathlib import Path


@click.command
@run_argument
@click.option(
    "--format",
    "-f",
    "form",
    type=click.Choice(["json", "markdown"]),
    default="json",
    show_default=True,
    help="Of what is written.",
)
@journal_option
@options.traceback
@guarded
def export(run_id: str, *, form: str, journal_path: Path | None, traceback: bool) -> ExitCode:
    """Write a run to stdout, with every prompt and answer, as JSON or Markdown."""
    from flowforge.cli.history_text import run_json, run_markdown
    from flowforge.runtime.event_json import safe_json
    from flowforge.runtime.history import history_of

    with open_journal(journal_path) as journal:
        run = history_of(journal, run_id)
        state = state_of(journal, run.row)
    if form == "json":
        click.echo(safe_json(run_json(run, state), indent=2))
    else:
        print_text(run_markdown(run, state))
    return ExitCode.DONE
