"""`flowforge map`: a workflow over many rows of inputs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.journals import journal_option, open_journal
from flowforge.cli.logs import log_options, open_log
from flowforge.cli.printing import print_note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowforge.backends.elsewhere import Elsewhere
    from flowforge.backends.protocol import Backend
    from flowforge.cli.batch import Batch
    from flowforge.cli.cache_notes import CacheTally
    from flowforge.cli.logs import LogOptions
    from flowforge.cli.row_files import RowFile, RowResult
    from flowforge.journal.journal import Journal
    from flowforge.telemetry.run_log import RunLog


@click.command("map")
@click.argument("file", metavar="FILE", shell_complete=completers.files(*completers.RUNNABLE))
@click.argument(
    "rows",
    type=click.Path(path_type=Path),
    metavar="ROWS.jsonl",
    shell_complete=completers.files(".jsonl"),
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), required=True, metavar="OUT.jsonl",
    help="One line a row, in order.",
)  # fmt: skip
@click.option(
    "--jobs", "-j", type=click.IntRange(min=1), default=8, show_default=True, help="Rows at a time."
)
@click.option(
    "--open-runs", type=click.Choice(["all", "auto"]), default="all", show_default=True,
    help="auto: open fewer rows than --jobs where KV pages have no room for more, so that rows "
    "which wait for tools keep their conversations; each row ends sooner, all may end later.",
)  # fmt: skip
@click.option("--retry-failed", is_flag=True, help="Go on with the rows that failed.")
@click.option("--seed", type=int, metavar="N", help="For everything random; else from the rows.")
@options.answers
@options.model
@options.tool_format
@options.no_cache
@options.explain_cache
@journal_option
@click.option("--quiet", "-q", "is_quiet", is_flag=True, help="No progress.")
@log_options
@options.traceback
@options.backend
@guarded
def map_(
    file: str,
    rows: Path,
    *,
    output: Path,
    jobs: int,
    open_runs: str,
    retry_failed: bool,
    seed: int | None,
    answers_file: Path | None,
    model: str | None,
    tool_format: str | None,
    no_cache: bool,
    explain_cache: bool,
    journal_path: Path | None,
    is_quiet: bool,
    log: LogOptions | None,
    traceback: bool,
    backend: str,
) -> ExitCode:
    """Run a workflow once for every line of ROWS.jsonl, a JSON object of its inputs.

    All rows share one engine, and what their prompts have in common. The same command again goes on
    where a cut one stopped: no row is run twice.
    """
    import anyio

    from flowforge.cli.answers import read_answers
    from flowforge.cli.backends import require_models, require_tool_format
    from flowforge.cli.batch import read_batch
    from flowforge.cli.diagnostics import print_workflow_errors
    from flowforge.cli.row_files import RowFile
    from flowforge.journal.lease import Lease
    from flowforge.runtime.checking import load_file
    from flowforge.runtime.elsewhere import elsewhere_of

    if explain_cache and no_cache:
        raise click.UsageError("--explain-cache needs the cache: no --no-cache")
    require_tool_format(tool_format)
    loaded = load_file(file)
    if loaded.program is None:
        print_workflow_errors(loaded.diagnostics, as_json=False)
        return ExitCode.WORKFLOW
    batch = read_batch(loaded.program, rows, seed)
    settings = _Settings(
        backend,
        loaded.program.model if model is None else model,
        tool_format,
        read_answers(answers_file),
        jobs,
        tries_failed=retry_failed,
        is_quiet=is_quiet or (log is not None and log.takes_stderr),
        cache={"is_seeded": seed is not None, "uses_cache": not no_cache},
        explains_cache=explain_cache,
        heeds_pages=open_runs == "auto",
        elsewhere=elsewhere_of(loaded.program),
    )
    require_models(settings.model, settings.elsewhere, backend=backend)
    with (
        open_journal(journal_path, begins_runs=True) as journal,
        # Before the output is read: who has the batch may write to it.
        Lease(journal.path, batch.run_name),
        open_log(log) as run_log,
    ):
        out = RowFile(output, batch)
        cancelled = anyio.run(_run, batch, out, journal, settings, run_log)
    if cancelled is not None:
        click.echo(f"cancelled{cancelled}; the same command goes on with it", err=True)
        return ExitCode.INTERRUPTED
    return _conclude(out, is_quiet=settings.is_quiet)


@dataclass(frozen=True, slots=True)
class _Settings:
    """How the rows are run."""

    backend: str
    model: str | None
    tool_format: str | None
    answers: Mapping[str, str]
    jobs: int
    tries_failed: bool
    is_quiet: bool
    cache: Mapping[str, bool]
    explains_cache: bool
    heeds_pages: bool
    elsewhere: Elsewhere

    def is_done(self, batch: Batch, out: RowFile) -> bool:
        """Whether no row is left to run."""
        is_whole = len(out.results) == len(batch.rows)
        return is_whole and not (self.tries_failed and out.failed_rows)

    def tell(self, lines: Iterable[str]) -> None:
        """Print notes, unless it is to be quiet."""
        for line in lines:
            if not self.is_quiet:
                print_note(line)


async def _run(
    batch: Batch, out: RowFile, journal: Journal, settings: _Settings, log: RunLog | None
) -> str | None:
    """Run what is left; why the batch was cancelled, None where it came to its end."""
    import anyio

    from flowforge.cli.backends import open_backend
    from flowforge.cli.cache_notes import CacheTally
    from flowforge.cli.download import DownloadProgress
    from flowforge.control.desk import Control
    from flowforge.control.orders import socket_path

    if settings.is_done(batch, out):
        return None
    scope = anyio.CancelScope()
    control = Control(scope.cancel, is_shown=False)
    tally = CacheTally(explains=settings.explains_cache)
    with DownloadProgress(is_quiet=settings.is_quiet) as download:
        async with (
            open_backend(
                settings.backend,
                settings.model,
                download,
                tool_format=settings.tool_format,
                elsewhere=settings.elsewhere,
            ) as opened,
            control.served(socket_path(journal.path, batch.run_name)),
        ):
            backend = control.around(opened)
            with scope:
                await _run_rows(batch, out, backend, journal, settings, log, tally)
            settings.tell(tally.summary())
    if not scope.cancelled_caught:
        return None
    return "" if control.exceeded is None else f": {control.exceeded}"


async def _run_rows(
    batch: Batch,
    out: RowFile,
    backend: Backend,
    journal: Journal,
    settings: _Settings,
    log: RunLog | None,
    tally: CacheTally,
) -> None:
    """Run rows that failed again where that is asked for, and those that the output lacks."""
    from flowforge.cli.answers import asker_for
    from flowforge.cli.batch import BatchRunner
    from flowforge.cli.journals import kept_options
    from flowforge.cli.open_runs import OpenRuns
    from flowforge.cli.progress import NoProgress
    from flowforge.journal.writer import JournalWriter

    kept = kept_options(
        settings.backend, settings.model, settings.answers, tool_format=settings.tool_format
    )
    runner = BatchRunner(
        batch,
        backend,
        asker_for(settings.answers, NoProgress()),
        JournalWriter(journal),
        {**kept, **settings.cache},
        log,
        lambda row, notes: settings.tell(tally.take(notes, f"row {row}")),
    )
    open_runs = OpenRuns(settings.jobs, backend.statistics if settings.heeds_pages else None)
    progress = _Progress(len(batch.rows), len(out.results), is_quiet=settings.is_quiet)

    def take(result: RowResult) -> None:
        out.append(result)
        progress.show(result)

    rest = range(len(out.results), len(batch.rows))
    if settings.tries_failed and out.failed_rows:
        again: list[RowResult] = []
        await runner.run(out.failed_rows, open_runs, again.append, tries_failed=True)
        out.replace(again)
    await runner.run(rest, open_runs, take, tries_failed=settings.tries_failed)


class _Progress:
    """How many rows are done: a line that is written over on a terminal, else some lines."""

    def __init__(self, num_rows: int, num_done: int, *, is_quiet: bool) -> None:
        self._num_rows = num_rows
        self._num_done = num_done
        self._num_failed = 0
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()

    def show(self, result: RowResult) -> None:
        """One more row."""
        self._num_done += 1
        self._num_failed += bool(result.failures)
        is_last = self._num_done == self._num_rows
        is_due = self._is_terminal or is_last or self._num_done % max(1, self._num_rows // 10) == 0
        if self._is_quiet or not is_due:
            return
        failed = f", {self._num_failed:,} failed" if self._num_failed else ""
        width = 20 * self._num_done // self._num_rows
        bar = f"[{'#' * width}{' ' * (20 - width)}] " if self._is_terminal else ""
        line = f"{bar}{self._num_done:,} of {self._num_rows:,} rows{failed}"
        ends = "\n" if is_last or not self._is_terminal else ""
        sys.stderr.write(f"\r{line}{ends}" if self._is_terminal else f"{line}{ends}")
        sys.stderr.flush()


def _conclude(out: RowFile, *, is_quiet: bool) -> ExitCode:
    failed = out.failed_rows
    if failed and not is_quiet:
        for row in failed[:20]:
            print_note(f"row {row} failed: {out.results[row].failures[0]}")
        if len(failed) > 20:
            click.echo(f"and {len(failed) - 20} more", err=True)
        click.echo("to go on with them: the same command with --retry-failed", err=True)
    return ExitCode.RUN_FAILED if failed else ExitCode.DONE
