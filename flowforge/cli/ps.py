"""`flowforge ps`: the runs that go on now, and the people they wait for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line
from flowforge.cli.journals import batch_of, journal_option, open_journal
from flowforge.cli.printing import print_text
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


@click.command
@journal_option
@options.as_json
@options.traceback
@guarded
def ps(*, journal_path: Path | None, as_json: bool, traceback: bool) -> ExitCode:
    """List the runs that go on now, with the questions that they wait to be answered."""
    from flowforge.journal.lease import owner_of

    with open_journal(journal_path) as journal:
        for run in journal.runs():
            owner = owner_of(journal.path, run.run_id) if run.status == "running" else None
            if owner is None:
                continue
            batch = batch_of(run.run_id)
            status = _status(journal.path, batch or run.run_id)
            questions = status["questions"] if batch is None else []
            is_paused = status["is_paused"]
            age_s = time.time() - run.created_at
            if as_json:
                print_json_line(
                    {
                        "run_id": run.run_id,
                        "pid": owner,
                        "workflow": run.workflow,
                        "age_s": round(age_s, 1),
                        "is_paused": is_paused,
                        "batch": batch,
                        "questions": questions,
                    }
                )
                continue
            paused = "  paused" if is_paused else ""
            click.echo(f"{run.run_id}  pid {owner}  {age_s:,.0f} s  {run.workflow}{paused}")
            for question in questions:
                choices = ", ".join(question["choices"]) or "any text"
                print_text(f"  {question['path']} asks: {question['prompt']} ({choices})\n")
    return ExitCode.DONE


def _status(journal: Path, run_id: str) -> dict[str, Any]:
    from flowforge.control.orders import send_order

    try:
        return send_order(journal, run_id, order="status")
    except EngineError:
        # It has just ended, or is of a program that takes no orders.
        return {"questions": [], "is_paused": False}
