"""FlowForge: agent workflows on a language model in the same process.

What is listed in `__all__` is the public API; nothing else is stable. Names are imported when they
are first used, so that `import flowforge` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.backends.protocol import Backend
    from flowforge.backends.script import ScriptBackend, ScriptedAnswer
    from flowforge.errors import (
        EngineError,
        FlowForgeError,
        InternalError,
        Location,
        ToolError,
        WorkflowError,
    )
    from flowforge.runtime.events import Event
    from flowforge.runtime.invocation import check, load, run, run_sync
    from flowforge.runtime.run import Run, RunCancelledError, RunFailedError, start

__all__ = [  # noqa: RUF022 - grouped by what they are for
    # Workflows
    "check",
    "load",
    # Runs
    "Event",
    "Run",
    "run",
    "run_sync",
    "start",
    # Where tokens come from
    "Backend",
    "ScriptBackend",
    "ScriptedAnswer",
    # Errors
    "EngineError",
    "FlowForgeError",
    "InternalError",
    "Location",
    "RunCancelledError",
    "RunFailedError",
    "ToolError",
    "WorkflowError",
]

_HOMES = {
    "Backend": "flowforge.backends.protocol",
    "EngineError": "flowforge.errors",
    "Event": "flowforge.runtime.events",
    "FlowForgeError": "flowforge.errors",
    "InternalError": "flowforge.errors",
    "Location": "flowforge.errors",
    "Run": "flowforge.runtime.run",
    "RunCancelledError": "flowforge.runtime.run",
    "RunFailedError": "flowforge.runtime.run",
    "ScriptBackend": "flowforge.backends.script",
    "ScriptedAnswer": "flowforge.backends.script",
    "ToolError": "flowforge.errors",
    "WorkflowError": "flowforge.errors",
    "check": "flowforge.runtime.invocation",
    "load": "flowforge.runtime.invocation",
    "run": "flowforge.runtime.invocation",
    "run_sync": "flowforge.runtime.invocation",
    "start": "flowforge.runtime.run",
}


if not TYPE_CHECKING:  # A checker that sees `__getattr__` accepts every name.

    def __getattr__(name: str) -> object:
        """Import a public name from its home."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'flowforge' has no attribute {name!r}")
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
