"""Journals as commands use them: which file, which run, and what a run is resumed with."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from flowforge.cli import completers
from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.cli.session import SessionOptions
    from flowforge.cli.workflows import Launch
    from flowforge.engine.config import EngineConfig
    from flowforge.journal.journal import Journal
    from flowforge.journal.records import RunBegun, RunRow
    from flowforge.language.program import JsonValue

Command = TypeVar("Command", bound="Callable[..., object]")

journal_option = click.option(
    "--journal",
    "journal_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The journal; without it $FLOWFORGE_JOURNAL, or runs.db in your state folder.",
)
_run_argument = click.argument("run_id", metavar="RUN", shell_complete=completers.runs)


def run_argument(command: Command) -> Command:
    """The run that a command is about, by its name or the beginning of it."""
    return _run_argument(command)


def open_journal(path: Path | None, *, begins_runs: bool = False) -> Journal:
    """The journal at `path`, or the user's own. Raises EngineError EN7xx.

    begins_runs: of a command that writes runs. Only such a one makes a file that was named.
    """
    from flowforge.journal.journal import Journal
    from flowforge.journal.location import default_journal, existing_journal

    if not begins_runs:
        return Journal(existing_journal(path))
    return Journal(default_journal() if path is None else path.expanduser().absolute())


def begun_run(launch: Launch, options: SessionOptions, created_at: float) -> RunBegun:
    """A run as it goes into the journal, with all that `resume` needs."""
    from flowforge.journal.records import RunBegun

    return RunBegun(
        launch.workflow,
        launch.target,
        launch.inputs,
        launch.seed,
        launch.definitions,
        kept_options(
            options.backend,
            options.model,
            options.answers,
            options.engine,
            options.tool_format,
            keeps_kv=options.keeps_kv,
            hooks=options.hooks,
        ),
        created_at,
    )


def kept_options(
    backend: str,
    model: str | None,
    answers: Mapping[str, str],
    engine: EngineConfig | None = None,
    tool_format: str | None = None,
    *,
    keeps_kv: bool = False,
    hooks: tuple[str, ...] = (),
) -> dict[str, JsonValue]:
    """What a run must be gone on with."""
    return {
        "backend": _absolute_backend(backend),
        "model": model,
        "answers": dict(answers),
        "engine": None if engine is None else asdict(engine),
        "today": date.today().isoformat(),
        "tool_format": tool_format,
        "keeps_kv": keeps_kv,
        "hooks": [*hooks],
    }


def options_of(row: RunRow, **changed: Any) -> SessionOptions:
    """What a run was begun with, and what this command says otherwise."""
    from flowforge.cli.session import SessionOptions

    kept = cast("dict[str, Any]", row.begun.options)
    engine = kept["engine"]
    answers = {**kept["answers"], **changed.pop("answers")}
    return SessionOptions(
        backend=kept["backend"],
        model=kept["model"],
        answers=answers,
        engine=None if engine is None else _engine_of(engine),
        today=date.fromisoformat(kept["today"]),
        tool_format=kept.get("tool_format"),
        keeps_kv=kept.get("keeps_kv", False),
        hooks=tuple(kept.get("hooks", ())),
        **changed,
    )


def _engine_of(kept: dict[str, Any]) -> EngineConfig:
    from flowforge.engine.config import EngineConfig
    from flowforge.engine.policy import SchedulingPolicy

    # Runs of before there were policies keep none.
    policy = SchedulingPolicy(**kept.get("policy", {}))
    return EngineConfig(**{name: kept[name] for name in kept if name != "policy"}, policy=policy)


_BATCH = re.compile(r"(map-[0-9a-f]{10})(-[0-9]+)?")


def run_to_order(journal: Journal, name: str) -> str:
    """Who takes the orders for a run: itself, or the batch that it is a row of.

    Raises WorkflowError WF701.
    """
    batch = _BATCH.fullmatch(name)
    return batch[1] if batch is not None else journal.run(name).run_id


def batch_of(run_id: str) -> str | None:
    """The batch that a run is a row of."""
    found = _BATCH.fullmatch(run_id)
    return None if found is None else found[1]


def newest_unfinished(journal: Journal) -> str:
    """The run that was begun last of those that can go on. Raises WorkflowError WF701."""
    from flowforge.journal.lease import state_of

    for run in journal.runs():
        if state_of(journal, run) in {"interrupted", "failed", "cancelled"}:
            return run.run_id
    raise WorkflowError(
        "WF701",
        f"the journal {str(journal.path)!r} has no run that could go on",
        help="'flowforge runs' lists them",
    )


def _absolute_backend(spec: str) -> str:
    """A script is named by where it is, so that a run can be resumed from any folder."""
    kind, colon, file = spec.partition(":")
    return f"{kind}:{Path(file).absolute()}" if colon else spec
