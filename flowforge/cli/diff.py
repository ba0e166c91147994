"""`flowforge diff`: where two runs part."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from flowforge.cli import completers, options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line
from flowforge.cli.journals import journal_option, open_journal
from flowforge.cli.printing import print_text

if TYPE_CHECKING:
    from pathlib import Path


@click.command
@click.argument("one", metavar="RUN", shell_complete=completers.runs)
@click.argument("other", metavar="RUN", shell_complete=completers.runs)
@journal_option
@options.as_json
@options.traceback
@guarded
def diff(
    one: str, other: str, *, journal_path: Path | None, as_json: bool, traceback: bool
) -> ExitCode:
    """Show where two runs part: inputs, prompts, values and errors, step by step.

    Exits with 1 when they differ.
    """
    from flowforge.cli.history_text import difference_text
    from flowforge.runtime.history import differences, history_of

    with open_journal(journal_path) as journal:
        found = differences(history_of(journal, one), history_of(journal, other))
    for difference in found:
        if as_json:
            print_json_line(asdict(difference))
        else:
            print_text(f"{difference_text(difference)}\n")
    return ExitCode.RUN_FAILED if found else ExitCode.DONE
