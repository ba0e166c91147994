"""Which model a step runs on: its own, that of the conversation it continues, or the run's."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.fields import text_of
from flowforge.language.program import Gen, Run
from flowforge.language.remote_models import REMOTE, ROUTE
from flowforge.language.traversal import all_steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flowforge.language.program import Program
    from flowforge.language.scope import Report
    from flowforge.language.yaml_nodes import Entry


def model_of_entry(
    entry: Entry | None,
    folder: Path | None,
    report: Report,
    known: frozenset[str] | None = None,
) -> str | None:
    """The model that an entry names. What begins with './' or '../' is seen from the folder.

    folder: of the workflow's file; None when it has none. known: the names of models elsewhere;
    None leaves them unchecked.
    """
    text = None if entry is None else text_of(entry, report)
    if entry is not None and text is not None and known is not None:
        _check_elsewhere(text, entry, known, report)
    if text is None or folder is None or not text.startswith(("./", "../")):
        return text
    return os.path.normpath(folder / text)


def models_of(program: Program) -> tuple[str | None, ...]:
    """The models that its steps name, and those of the workflows it runs, each once.

    None stands for the run's own, on which steps without a name run: it is there if one does.
    """
    return tuple(dict.fromkeys(_models_in(program)))


def _models_in(program: Program) -> Iterator[str | None]:
    for step in all_steps(program.steps.values()):
        if isinstance(step.verb, Gen):
            yield step.verb.model
        elif isinstance(step.verb, Run):
            yield from _models_in(step.verb.program)


def _check_elsewhere(text: str, entry: Entry, known: frozenset[str], report: Report) -> None:
    if not text.startswith((REMOTE, ROUTE)) or text in known:
        return
    kind = "models" if text.startswith(REMOTE) else "routes"
    there = ", ".join(sorted(known)) or "none"
    otherwise = f"declare it under [{kind}.NAME] in flowforge.toml; there are: {there}"
    message = f"{text[:100]!r} is declared nowhere"
    report.error("WF145", message, entry.value.span, did_you_mean(text, known, otherwise))
