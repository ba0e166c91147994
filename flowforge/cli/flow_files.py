"""Files of Python flows, which some commands cannot take: a flow's steps are what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from pathlib import Path

_INSTEAD = {
    "check": "a type checker checks its types, and a test on flowforge.testing.script its steps",
    "graph": "run it with --json to see its steps and what they continue",
    "plan": "run it on flowforge.testing.script, or with --json, to have its tokens counted",
}


def is_flow(target: str) -> bool:
    """Whether a word of the command line names a flow: FILE.py, or FILE.py:NAME."""
    return target.endswith(".py") or ".py:" in target


def require_workflow_file(file: Path, command: Literal["check", "graph", "plan"]) -> None:
    """Raise WorkflowError WF528 for a flow in Python, whose steps no command knows beforehand."""
    if is_flow(str(file)):
        raise WorkflowError(
            "WF528",
            f"{str(file)!r} is a flow in Python, whose steps are only known as it runs; "
            f"'{command}' takes workflow files",
            help=_INSTEAD[command],
        )
