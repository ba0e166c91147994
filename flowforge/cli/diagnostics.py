"""Diagnostics on the terminal: as a compiler shows them, or as JSON lines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from flowforge import environment
from flowforge.cli.failures import print_json_line
from flowforge.language.diagnostics import render_diagnostic, shown_of, summary_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowforge.language.diagnostics import Diagnostic


def print_diagnostics(diagnostics: Iterable[Diagnostic], stream: TextIO) -> None:
    """Each with its source line and a blank line after it; coloured if `stream` is a terminal.

    Those that `shown_of` gives: of thousands alike the first, and how many there are beside.
    """
    colour = wants_colour(stream)
    for diagnostic in shown_of(diagnostics):
        stream.write(render_diagnostic(diagnostic, colour=colour) + "\n\n")


def print_diagnostics_as_json(diagnostics: Iterable[Diagnostic]) -> None:
    """Each as one JSON line on stdout."""
    for diagnostic in diagnostics:
        print_json_line({"event": "diagnostic", **diagnostic.as_json()})


def summary_line(diagnostics: Sequence[Diagnostic]) -> str:
    """How many problems there are, and who explains the first of the gravest."""
    summary = summary_of(diagnostics)
    if not diagnostics:
        return summary
    first = min(diagnostics, key=lambda one: one.severity != "error")
    return f"{summary}; 'flowforge explain {first.code}' says more"


def wants_colour(stream: TextIO) -> bool:
    """A terminal that shows colours, for a user who has not said no (no-color.org)."""
    is_able = stream.isatty() and environment.TERM.text() != "dumb"
    return is_able and not environment.NO_COLOR.text()


def print_workflow_errors(diagnostics: tuple[Diagnostic, ...], *, as_json: bool) -> None:
    """What stops a workflow from running: on stderr, and as JSON lines on stdout if asked."""
    print_diagnostics(diagnostics, sys.stderr)
    sys.stderr.write(f"{summary_line(diagnostics)}\n")
    if as_json:
        print_diagnostics_as_json(diagnostics)
