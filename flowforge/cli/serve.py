"""`flowforge serve`: the model, and workflows, over HTTP."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded
from flowforge.cli.journals import journal_option, open_journal
from flowforge.cli.printing import print_note

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from flowforge.backends.elsewhere import Elsewhere
    from flowforge.backends.hooks import Hooks
    from flowforge.engine.config import EngineConfig
    from flowforge.journal.journal import Journal
    from flowforge.language.program import Program
    from flowforge.serving.keys import KeyRing
    from flowforge.serving.recording import Recorder
    from flowforge.serving.settings import ServerSettings

_AT_LEAST_ONE = click.IntRange(min=1)
_SECONDS = options.FiniteRange(min=0)


@click.command
@options.model
@click.option(
    "--workflows",
    "folder",
    type=options.PATH,
    metavar="DIR",
    help="Serve the workflow files of this folder, too.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; others than this machine reach it only at another one.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0 takes one that is free, and tells it.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="What requests call the model; without it its own name. May be repeated.",
)
@click.option(
    "--keys",
    "keys_file",
    type=options.PATH,
    metavar="FILE",
    help="Who may ask: a file made by 'flowforge keys add'. It is read again when it changes. Keys "
    "also come from $FLOWFORGE_API_KEYS; without any, everybody may ask.",
)
@click.option(
    "--requests-per-minute",
    type=_AT_LEAST_ONE,
    metavar="N",
    help="Of one key that has no limit of its own.",
)
@click.option(
    "--concurrent",
    type=_AT_LEAST_ONE,
    metavar="N",
    help="Requests at a time of one key that has no limit of its own.",
)
@click.option(
    "--max-requests",
    type=_AT_LEAST_ONE,
    default=512,
    show_default=True,
    metavar="N",
    help="Requests at a time of all together; more are refused.",
)
@click.option(
    "--max-body",
    type=_AT_LEAST_ONE,
    default=10,
    show_default=True,
    metavar="MB",
    help="The largest request.",
)
@click.option(
    "--cors",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages of this origin ask; may be repeated, '*' is all. None without it.",
)
@click.option(
    "--drain",
    "drain_s",
    type=_SECONDS,
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="How long requests under way may take at the end.",
)
@click.option(
    "--record",
    "record_file",
    type=options.PATH,
    metavar="FILE",
    help="Write every request down, for 'flowforge bench serve' to replay. Holds prompts.",
)
@options.hooks
@options.engine
@options.tool_format
@journal_option
@click.option("--no-journal", is_flag=True, help="Leave nothing of runs that could be resumed.")
@click.option("--quiet", "-q", "is_quiet", is_flag=True, help="No line for each request.")
@options.traceback
@guarded
def serve(
    *,
    model: str | None,
    folder: Path | None,
    host: str,
    port: int,
    names: tuple[str, ...],
    keys_file: Path | None,
    requests_per_minute: int | None,
    concurrent: int | None,
    max_requests: int,
    max_body: int,
    cors_origins: tuple[str, ...],
    drain_s: float,
    record_file: Path | None,
    hook_files: tuple[Path, ...],
    engine: EngineConfig,
    tool_format: str | None,
    journal_path: Path | None,
    no_journal: bool,
    is_quiet: bool,
    traceback: bool,
) -> ExitCode:
    """Serve the model as the OpenAI API has it, and workflows beside it.

    Ends in order at SIGTERM and Ctrl-C: docs/serving.md.
    """
    import anyio

    from flowforge.backends.hooks import load_hooks
    from flowforge.cli.backends import require_models, require_tool_format
    from flowforge.runtime.elsewhere import elsewhere_of_all
    from flowforge.serving.keys import KeyRing
    from flowforge.serving.recording import Recorder
    from flowforge.serving.server import take_place
    from flowforge.serving.settings import Limits, ServerSettings, Waits

    require_tool_format(tool_format)
    keys = KeyRing.from_environment(keys_file, os.environ)
    hooks = load_hooks(hook_files)
    programs = [] if folder is None else _programs_of(folder)
    if programs is None:
        return ExitCode.WORKFLOW
    settings = ServerSettings(
        names,
        host,
        port,
        Limits(requests_per_minute, concurrent, max_requests, max_body * 1024 * 1024),
        Waits(drain_s=drain_s),
        cors_origins,
    )
    elsewhere = elsewhere_of_all(programs)
    require_models(model, elsewhere, engine)
    with ExitStack() as stack:
        # Whatever cannot be had is told before a model is loaded.
        place = stack.enter_context(take_place(host, port))
        recorder = None
        if record_file is not None:
            recorder = stack.enter_context(Recorder(record_file))
        journal = None
        if programs and not no_journal:
            journal = stack.enter_context(open_journal(journal_path, begins_runs=True))
        order = _Order(
            model,
            settings,
            keys,
            hooks,
            programs,
            elsewhere,
            engine,
            tool_format,
            [str(file.absolute()) for file in hook_files],
            recorder,
            place,
        )
        _log_to_stderr(is_quiet=is_quiet)
        signal = anyio.run(_serve, order, journal)
    return ExitCode.DONE if signal is None else ExitCode(128 + signal)


@dataclass(frozen=True, slots=True)
class _Order:
    """What the command line asked for."""

    model: str | None
    settings: ServerSettings
    keys: KeyRing
    hooks: Hooks
    programs: list[Program]
    elsewhere: Elsewhere
    engine: EngineConfig
    tool_format: str | None
    hook_files: list[str]
    recorder: Recorder | None
    place: socket


async def _serve(order: _Order, journal: Journal | None) -> int | None:
    """Serve until a signal ends it; which."""
    from dataclasses import replace

    from flowforge.backends.engines import open_engines
    from flowforge.backends.hooks import hooked
    from flowforge.cli.download import DownloadProgress
    from flowforge.cli.journals import kept_options
    from flowforge.journal.writer import JournalWriter
    from flowforge.serving.app import make_app
    from flowforge.serving.runs import RunPlace, open_runs
    from flowforge.serving.server import Server
    from flowforge.serving.service import Service
    from flowforge.serving.tenants import open_tenants

    async with AsyncExitStack() as stack:
        with DownloadProgress(is_quiet=False) as progress:
            opened = open_engines(
                order.model,
                progress=progress,
                config=order.engine,
                tool_format=order.tool_format,
            )
            engines = await stack.enter_async_context(opened)
        settings = order.settings
        if not settings.names:
            settings = replace(settings, names=(_name_of(order.model),))
        service = Service(
            engines.own, settings, order.keys, hooks=order.hooks, recorder=order.recorder
        )
        place = None
        if journal is not None:
            kept = kept_options(
                "engine",
                order.model,
                {},
                order.engine,
                order.tool_format,
                hooks=tuple(order.hook_files),
            )
            # What one key's run has cached must not come to another's.
            kept["uses_cache"] = order.keys.is_open
            place = RunPlace(JournalWriter(journal), kept)
        backend_of = await stack.enter_async_context(open_tenants(engines, order.elsewhere))
        runs = await stack.enter_async_context(
            open_runs(order.programs, lambda key: hooked(backend_of(key), order.hooks), place)
        )
        server = Server(make_app(service, runs), service, runs, order.place)
        _tell_start(settings, server.port, order)
        return await server.serve_with_signals()


def _programs_of(folder: Path) -> list[Program] | None:
    """The workflows of a folder; None where one has errors, which are told.

    Raises WorkflowError WF550 for a folder without workflows, or with two of one name.
    """
    from flowforge.cli.diagnostics import print_workflow_errors
    from flowforge.errors import WorkflowError
    from flowforge.runtime.checking import load_file

    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if not files:
        raise WorkflowError(
            "WF550",
            f"{str(folder)!r} has no workflow file",
            help="--workflows takes a folder of files that end with .yaml or .yml",
        )
    programs: dict[str, Program] = {}
    for file in files:
        loaded = load_file(file)
        if loaded.program is None:
            print_workflow_errors(loaded.diagnostics, as_json=False)
            return None
        other = programs.setdefault(loaded.program.name, loaded.program)
        if other is not loaded.program:
            raise WorkflowError(
                "WF550",
                f"{other.file!r} and {str(file)!r} have the same name {other.name!r}",
                help="the name is part of the address under which a workflow is served",
            )
    return [*programs.values()]


def _name_of(model: str | None) -> str:
    from flowforge.engine.model_store import resolve_model

    return resolve_model(model).name


def _tell_start(settings: ServerSettings, port: int, order: _Order) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print_note(f"serving {' and '.join(settings.names)} at http://{host}:{port}/v1")
    if order.programs:
        print_note(f"workflows: {', '.join(program.name for program in order.programs)}")
    if order.keys.is_open and settings.host not in ("127.0.0.1", "::1", "localhost"):
        print_note("no keys: whoever reaches this address may ask; --keys says who may")


def _log_to_stderr(*, is_quiet: bool) -> None:
    """Lines of the server's own loggers, and warnings of all others."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("flowforge.serving").setLevel(logging.INFO)
    logging.getLogger("flowforge.access").setLevel(logging.WARNING if is_quiet else logging.INFO)
