"""`flowforge report`: what the runs of a journal say, taken together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.journals import journal_option, open_journal
from flowforge.cli.printing import print_note, print_text

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.journal.journal import Journal
    from flowforge.view.route_report import RouteReport


@click.group
def report() -> None:
    """Compare what the runs of a journal say."""


@report.command
@journal_option
@click.option(
    "--since", metavar="TIME", help="Runs begun no longer ago than this, for example 7d or 12h."
)
@click.option("--run", "run_id", metavar="RUN", help="This run alone.")
@options.as_json
@options.traceback
@guarded
def routes(
    *,
    journal_path: Path | None,
    since: str | None,
    run_id: str | None,
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Compare the models that routes sent requests to.

    checks: answers that stood the checks of their form, of all that were checked. likeness: of a
    shadow's answers to those that it shadows. Errors are counted by their codes.
    """
    from flowforge.flows.durations import seconds_of
    from flowforge.view.route_report import RouteReport, table_of

    age_s = None if since is None else seconds_of(since)
    found = RouteReport()
    with open_journal(journal_path) as journal:
        for name in _chosen(journal, run_id, age_s):
            _take_run(found, journal, name)
    if as_json:
        import json

        print_text(json.dumps([one.as_json() for one in found.models], indent=2) + "\n")
    elif found.models:
        print_text(table_of(found.models))
    else:
        print_note("no run of this journal was routed")
    return ExitCode.DONE


def _chosen(journal: Journal, run_id: str | None, age_s: float | None) -> list[str]:
    """Names of runs, the oldest first. Raises WorkflowError WF701."""
    if run_id is not None:
        return [journal.run(run_id).run_id]
    earliest = 0.0 if age_s is None else time.time() - age_s
    return [run.run_id for run in reversed(journal.runs()) if run.created_at >= earliest]


def _take_run(found: RouteReport, journal: Journal, run_id: str) -> None:
    from flowforge.runtime.event_json import fact_from_json, is_known

    found.begin_run()
    for told in journal.events(run_id):
        if is_known(told.kind):
            found.take(fact_from_json(told.kind, cast("dict[str, Any]", told.fact)))
