"""`flowforge runs`: the runs of a journal; `flowforge runs prune`: forget some of them."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line
from flowforge.cli.journals import journal_option, open_journal
from flowforge.journal.lease import state_of

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.journal.journal import Journal
    from flowforge.journal.records import RunSummary


@click.group(invoke_without_command=True)
@journal_option
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="The newest N.",
)
@options.as_json
@click.pass_context
def runs(context: click.Context, *, journal_path: Path | None, limit: int, as_json: bool) -> None:
    """List runs, the newest first; or forget some: runs prune."""
    if context.invoked_subcommand is None:
        _list(journal_path=journal_path, limit=limit, as_json=as_json)
    context.obj = journal_path


@guarded
def _list(*, journal_path: Path | None, limit: int, as_json: bool) -> ExitCode:
    from flowforge.cli.history_text import moment

    with open_journal(journal_path) as journal:
        found = journal.runs(limit=limit)
        for run in found:
            state = state_of(journal, run)
            if as_json:
                print_json_line({**asdict(run), "status": state})
                continue
            taken = "" if run.ended_at is None else f"{run.ended_at - run.created_at:.1f} s"
            click.echo(
                f"{run.run_id}  {state:<11}  {moment(run.created_at)}  {taken:>9}  {run.workflow}"
            )
    if not found and not as_json:
        click.echo("no runs yet", err=True)
    return ExitCode.DONE


@runs.command("prune")
@journal_option
@click.option("--older-than", metavar="TIME", help="Runs begun longer ago, for example 30d or 12h.")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="All but the newest N.")
@click.option("--dry-run", is_flag=True, help="Only say which.")
@options.traceback
@click.pass_context
@guarded
def prune(
    context: click.Context,
    *,
    journal_path: Path | None,
    older_than: str | None,
    keep: int | None,
    dry_run: bool,
    traceback: bool,
) -> ExitCode:
    """Forget runs, and give their space back.

    A run that is going on is never forgotten. With both options, those that both name.
    --older-than also forgets results of the step cache that were used last longer ago.
    """
    from flowforge.control.detaching import forget_leftovers
    from flowforge.flows.durations import seconds_of

    if older_than is None and keep is None:
        raise click.UsageError("say which: --older-than TIME, --keep N, or both")
    age_s = 0.0 if older_than is None else seconds_of(older_than)
    with open_journal(journal_path or context.obj) as journal:
        chosen = _chosen(journal, time.time() - age_s, keep or 0)
        for run in chosen:
            click.echo(run.run_id)
        if chosen and not dry_run:
            journal.remove([run.run_id for run in chosen])
            for run in chosen:
                forget_leftovers(journal.path, run.run_id)
        num_results = 0
        if older_than is not None and not dry_run:
            num_results = journal.forget_results(time.time() - age_s)
            if num_results:
                click.echo(f"{num_results} results of the step cache", err=True)
        if (chosen or num_results) and not dry_run:
            journal.shrink()
    return ExitCode.DONE


def _chosen(journal: Journal, begun_before: float, keep: int) -> list[RunSummary]:
    return [
        run
        for run in journal.runs()[keep:]
        if run.created_at < begun_before and state_of(journal, run) != "running"
    ]
