"""Paths of the steps of a flow: the whole flow is one scope, each branch another.

A name that comes again in its scope is numbered: `critique`, `critique.2`. So paths depend on the
order within a branch and never on which branch was quicker.
"""

from __future__ import annotations

import re
from contextvars import ContextVar

from flowforge.errors import WorkflowError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Scope:
    """Allots the paths under one prefix."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._num_uses: dict[str, int] = {}

    def path(self, name: str) -> str:
        """The path of the next step with this name. Raises WorkflowError WF606 for a bad name."""
        if _NAME.fullmatch(name) is None:
            raise WorkflowError(
                "WF606",
                f"a step cannot be called {name!r}",
                help="letters, digits, '_' and '-', not a digit first",
            )
        num_uses = self._num_uses[name] = self._num_uses.get(name, 0) + 1
        return f"{self._prefix}{name}" + (f".{num_uses}" if num_uses > 1 else "")


def branch_path(path: str, index: int) -> str:
    """'explore[1]', the branch itself."""
    return f"{path}[{index}]"


def branch_scope(path: str, index: int) -> Scope:
    """The scope of what runs inside a branch."""
    return Scope(branch_path(path, index) + "/")


SCOPE: ContextVar[Scope] = ContextVar("flowforge_scope")
"""The scope of the task that runs: a flow sets it, and each of its branches for itself."""
