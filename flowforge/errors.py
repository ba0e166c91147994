"""The errors a user of FlowForge can see: one root, families by who must act.

    FlowForgeError
    ├── WorkflowError    the author of the workflow, or who gave its inputs    WF…
    ├── EngineError      who operates the engine or chose the model            EN…
    ├── ToolError        who owns the tool                                     TL…
    └── InternalError    us                                                    IN…

This module imports nothing: every other room may stand on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file; line and column count from 1, in characters."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class FlowForgeError(Exception):
    """Something a person can act on.

    code: stable, for example "EN201"; what documentation and scripts key on.
    message: what happened, with the values expected and got; lower case, no full stop.
    location: where in the user's files, when there is such a place.
    help: how to fix it, one line.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        location: Location | None = None,
        help: str | None = None,
    ) -> None:
        """See the class."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.location = location
        self.help = help

    def __str__(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        if self.location is not None:
            lines.append(f"  --> {self.location}")
        if self.help is not None:
            lines.append(f"help: {self.help}")
        return "\n".join(lines)


class WorkflowError(FlowForgeError):
    """The workflow or its inputs are at fault: its author or caller must act."""


class WrongInputsError(WorkflowError):
    """Several inputs are wrong. errors: each of them; code and location are those of the first."""

    def __init__(self, errors: Sequence[WorkflowError]) -> None:
        """See the class."""
        helps = dict.fromkeys(error.help for error in errors if error.help is not None)
        super().__init__(
            errors[0].code,
            "; ".join(error.message for error in errors),
            location=errors[0].location,
            help="; ".join(helps) or None,
        )
        self.errors: tuple[WorkflowError, ...] = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class EngineError(FlowForgeError):
    """The model, the machine or the engine's limits are at fault: its operator must act."""


class ToolError(FlowForgeError):
    """A tool failed: its owner must act."""


class InternalError(FlowForgeError):
    """FlowForge is at fault: please report it."""
