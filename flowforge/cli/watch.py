"""`flowforge watch`: a run as it goes on, or as it was, full screen or line by line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line
from flowforge.cli.journals import journal_option, open_journal
from flowforge.cli.tui import viewer_arguments, viewer_options

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.cli.progress import Progress
    from flowforge.view.attached import AttachedRun
    from flowforge.view.run_view import RunView
    from flowforge.view.sources import Link

LineDisplay = Literal["plain", "log", "json"]

_LOOK_S = 0.2


@click.command
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=completers.runs)
@journal_option
@click.option(
    "--display",
    type=click.Choice(["auto", "tui", "plain", "log", "json"]),
    default="auto",
    help="tui (full screen), plain (a line per start and end; for screen readers too), log (the "
    "same with times) or json. Without it tui in a terminal, else plain.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every event as a JSON line on stdout.")
@viewer_options
@options.traceback
@guarded
def watch(
    run_id: str | None,
    *,
    journal_path: Path | None,
    display: Literal["auto", "tui", "plain", "log", "json"],
    as_json: bool,
    is_ascii: bool,
    no_mouse: bool,
    keymap: Path | None,
    traceback: bool,
) -> ExitCode:
    """Watch a run from its beginning to its end; without RUN, the newest.

    Leaving it never stops the run. Line by line, the exit code is that of the run: 0 when it is
    done, 1 when it failed, was cancelled or was cut.
    """
    from flowforge.cli.terminal import is_terminal, view
    from flowforge.view.attached import AttachedRun

    with open_journal(journal_path) as journal:
        newest = journal.runs(limit=1)
        if run_id is None and not newest:
            raise click.UsageError("there is no run yet: begin one with 'flowforge run FILE'")
        name = journal.run(run_id or newest[0].run_id).run_id
        if as_json:
            display = "json"
        if display == "auto":
            display = "tui" if is_terminal() else "plain"
        if display != "tui":
            run = AttachedRun(journal, name)
            try:
                return _follow(run, journal.path, display)
            finally:
                run.close()
    if not is_terminal():
        raise click.UsageError("--display tui needs a terminal; plain needs none")
    arguments = viewer_arguments(journal_path, keymap, is_ascii=is_ascii, no_mouse=no_mouse)
    return ExitCode(view([name, *arguments]))


def _follow(source: AttachedRun, journal: Path, display: LineDisplay) -> ExitCode:
    """Lines as the events come: from the run itself, or else from its journal."""
    from flowforge.cli.event_records import INTERRUPTED, event_record, place_of
    from flowforge.cli.progress import choose_progress
    from flowforge.journal.lease import owner_of
    from flowforge.view.run_view import RunView

    progress: Progress = choose_progress(display)
    place = place_of(journal, source.run_id, owner_of(journal, source.run_id))
    shown = RunView()
    while True:
        batch = source.poll(_LOOK_S)
        for event in batch.events:
            # Who attaches is told everything from the beginning.
            if event.seq <= shown.last_seq:
                continue
            shown.take(event)
            progress.show(event)
            if display == "json":
                print_json_line(event_record(event, place))
        if not batch.events and batch.link != "live":
            if display == "json" and batch.link == "cut":
                print_json_line(INTERRUPTED)
            return _ended(shown, batch.link, progress)
        progress.refresh()
        if not batch.events:
            time.sleep(_LOOK_S)


def _ended(shown: RunView, link: Link, progress: Progress) -> ExitCode:
    status = shown.picture.status
    if link == "cut":
        progress.note("the run was cut: 'flowforge resume' goes on with it")
    elif status != "done":
        progress.note("the run failed" if status == "failed" else "the run was cancelled")
    return ExitCode.DONE if status == "done" else ExitCode.RUN_FAILED
