"""`flowforge run`: a workflow file or a flow of a Python file to its outputs, with live progress.

The result goes to stdout, everything else to stderr.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.journals import journal_option, open_journal
from flowforge.cli.logs import log_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flowforge.cli.logs import LogOptions
    from flowforge.cli.session import SessionOptions
    from flowforge.cli.workflows import Launch
    from flowforge.engine.config import EngineConfig
    from flowforge.journal.journal import Journal
    from flowforge.language.program import JsonValue
    from flowforge.runtime.run_journal import RunJournal


@click.command
@click.argument(
    "file", metavar="FILE|FILE.py:NAME", shell_complete=completers.files(*completers.RUNNABLE)
)
@options.inputs
@options.model
@options.answers
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="For everything random; without it one is drawn and told in the first event.",
)
@options.engine
@options.display
@journal_option
@options.detached
@click.option("--no-journal", is_flag=True, help="Leave nothing that could be resumed or shown.")
@click.option(
    "--otel",
    is_flag=True,
    help="Trace the run with OpenTelemetry, as the OTEL_* variables say where to; without it where "
    "they name an exporter or endpoint.",
)
@options.no_cache
@options.explain_cache
@click.option(
    "--keep-kv",
    "keeps_kv",
    is_flag=True,
    help="Write the KV of open conversations to disk when the run is paused or a question waits "
    "long: 'resume' then need not compute it again.",
)
@log_options
@options.tool_format
@options.hooks
@options.traceback
@options.backend
@guarded
def run(
    file: str,
    *,
    inputs: tuple[str, ...],
    inputs_file: Path | None,
    model: str | None,
    answers_file: Path | None,
    seed: int | None,
    engine: EngineConfig,
    display: options.Display,
    as_json: bool,
    is_quiet: bool,
    journal_path: Path | None,
    detach: bool,
    waits_for_answers: bool,
    no_journal: bool,
    no_cache: bool,
    explain_cache: bool,
    otel: bool,
    log: LogOptions | None,
    keeps_kv: bool,
    tool_format: str | None,
    hook_files: tuple[Path, ...],
    traceback: bool,
    backend: str,
) -> ExitCode:
    """Run a workflow file, or NAME, a flow of a Python file.

    The result goes to stdout, progress and accounting to stderr. The run is written down as it
    goes: 'flowforge resume' goes on with it, whatever ended it.
    """
    from flowforge.cli.answers import read_answers
    from flowforge.cli.backends import require_models, require_tool_format
    from flowforge.cli.detached import run_detached
    from flowforge.cli.inputs import read_inputs

    if display == "tui" and (no_journal or detach):
        raise click.UsageError("--tui needs a journal and a terminal: no --no-journal, no --detach")
    if no_journal:
        _require_no_journal_needed({"--detach": detach, "--keep-kv": keeps_kv})
    if detach:
        with open_journal(journal_path, begins_runs=True) as journal:
            return run_detached(journal.path)
    if explain_cache and (no_journal or no_cache):
        raise click.UsageError("--explain-cache needs the cache: no --no-journal, no --no-cache")
    require_tool_format(tool_format)
    answers = read_answers(answers_file)
    launch = _launch_of(
        file,
        read_inputs(inputs, inputs_file),
        {"*": ""} if waits_for_answers else answers,
        seed,
        as_json=as_json,
        is_quiet=is_quiet,
    )
    if launch is None:
        return ExitCode.WORKFLOW

    from flowforge.cli.session import Session, SessionOptions

    named = launch.model if model is None else model
    require_models(named, launch.elsewhere, engine, backend)
    session = SessionOptions(
        backend,
        named,
        answers,
        display,
        engine,
        waits_for_answers=waits_for_answers,
        explains_cache=explain_cache,
        is_traced=otel,
        tool_format=tool_format,
        log=log,
        keeps_kv=keeps_kv,
        hooks=tuple(str(file.absolute()) for file in hook_files),
    )
    cache: dict[str, JsonValue] = {"uses_cache": not no_cache, "is_seeded": seed is not None}
    if no_journal:
        return Session(launch, session).run()
    with open_journal(journal_path, begins_runs=True) as journal:
        begin = partial(_new_run, journal, launch, session, cache)
        return Session(launch, session, begin, journal.path).run()


def _require_no_journal_needed(option_to_given: dict[str, bool]) -> None:
    for option, is_given in option_to_given.items():
        if is_given:
            raise click.UsageError(f"{option} needs a journal: leave --no-journal out")


def _launch_of(
    file: str,
    inputs: dict[str, JsonValue],
    answers: Mapping[str, str],
    seed: int | None,
    *,
    as_json: bool,
    is_quiet: bool,
) -> Launch | None:
    """A flow or workflow file to begin; None for a file with errors, which are told."""
    from flowforge.cli.flow_files import is_flow
    from flowforge.cli.workflows import flow_to_begin, program_to_begin

    if is_flow(file):
        return flow_to_begin(file, inputs, seed)
    return program_to_begin(file, inputs, answers, seed, as_json=as_json, is_quiet=is_quiet)


def _new_run(
    journal: Journal, launch: Launch, session: SessionOptions, cache: dict[str, JsonValue]
) -> RunJournal:
    import time
    from dataclasses import replace

    from flowforge.cli.journals import begun_run
    from flowforge.journal.names import new_run_id
    from flowforge.journal.writer import JournalWriter
    from flowforge.runtime.run_journal import RunJournal

    begun = begun_run(launch, session, time.time())
    begun = replace(begun, options={**begun.options, **cache})
    return RunJournal.begin(JournalWriter(journal), new_run_id(), begun)
