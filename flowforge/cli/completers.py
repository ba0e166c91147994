"""What arguments may be, for completion in a shell: files, runs, steps, codes, models.

A completer never fails: where something cannot be read it knows nothing.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from click.shell_completion import CompletionItem

from flowforge.errors import FlowForgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    import click

    from flowforge.journal.journal import Journal

    Items: TypeAlias = list[CompletionItem[str]]
    Words: TypeAlias = Callable[[click.Context], Iterable[tuple[str, str]]]
    """Words with a line on each."""
    Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], Items]

_MOST_RUNS = 50


def _completer(words: Words) -> Completer:
    @functools.wraps(words)
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
        try:
            return [
                CompletionItem(word, help=what)
                for word, what in words(context)
                if word.startswith(incomplete)
            ]
        except (FlowForgeError, OSError):
            return []

    return complete


WORKFLOWS = (".yaml", ".yml")
RUNNABLE = (*WORKFLOWS, ".py")


def files(*suffixes: str) -> Completer:
    """Files of these suffixes; where a folder may be meant, all that the shell itself knows."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
        shown, _, begun = incomplete.rpartition("/")
        folder = f"{shown}/" if "/" in incomplete else ""
        try:
            found = [*Path(folder or ".").expanduser().iterdir()]
        except OSError:
            return []
        near = [one for one in found if one.name.startswith(begun) and _is_shown(one, begun)]
        if any(one.is_dir() for one in near):
            return [CompletionItem(incomplete, type="file")]
        names = sorted(one.name for one in near if one.suffix in suffixes)
        return [CompletionItem(f"{folder}{name}") for name in names]

    return complete


def _is_shown(file: Path, begun: str) -> bool:
    return not file.name.startswith(".") or begun.startswith(".")


@_completer
def runs(context: click.Context) -> Iterator[tuple[str, str]]:
    """The newest runs of the journal that is asked."""
    with _journal(context) as journal:
        for run in journal.runs(limit=_MOST_RUNS):
            yield run.run_id, run.workflow


@_completer
def steps(context: click.Context) -> Iterator[tuple[str, str]]:
    """The steps of the run that stands before."""
    from flowforge.runtime.history import history_of

    with _journal(context) as journal:
        # Behind an option that has no value yet click has not come to the arguments.
        run_id = context.params.get("run_id") or next(iter(context.args), "")
        picture = history_of(journal, str(run_id)).picture
        for path, step in picture.steps.items():
            yield path, step.verb or ""


@_completer
def codes(_context: click.Context) -> Iterator[tuple[str, str]]:
    """Codes of errors."""
    from flowforge.language.codes.explanations import families

    for family in families():
        for one in family.explanations:
            yield one.code, one.meaning


@_completer
def models(_context: click.Context) -> Iterator[tuple[str, str]]:
    """Models that are on this machine."""
    from flowforge.engine.model_store import list_models

    for model in list_models():
        yield model.name, model.revision


@_completer
def backends(_context: click.Context) -> Iterator[tuple[str, str]]:
    """Where answers come from."""
    yield "engine", "the model in this process"
    yield "script:", "a JSON file of answers by step path"


@contextmanager
def _journal(context: click.Context) -> Generator[Journal]:
    from flowforge.cli.journals import open_journal

    path = context.params.get("journal_path")
    with open_journal(path if isinstance(path, Path) else None) as journal:
        yield journal
