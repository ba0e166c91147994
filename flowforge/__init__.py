"""FlowForge: agent workflows on a language model in the same process.

What is listed in `__all__` is the public API; nothing else is stable. Names are imported when they
are first used, so that `import flowforge` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge import testing
    from flowforge.backends.hooks import Blocked, Hooks, Prompted, SeenTurn, Written, hooked
    from flowforge.backends.protocol import Backend, Score
    from flowforge.backends.script import ScriptBackend, ScriptedAnswer
    from flowforge.errors import (
        EngineError,
        FlowForgeError,
        InternalError,
        Location,
        ToolError,
        WorkflowError,
    )
    from flowforge.flows.branches import BranchTask, BranchTasks
    from flowforge.flows.chat import Branch, Chat, Fork
    from flowforge.flows.failures import ChatBusy, Stopped
    from flowforge.flows.flow import Flow, flow
    from flowforge.flows.retries import Retry
    from flowforge.flows.rounds import Round, rounds
    from flowforge.flows.run import Run
    from flowforge.flows.servers import McpTools, mcp
    from flowforge.flows.starting import run, run_sync, start
    from flowforge.flows.streams import TextStream, ValueStream
    from flowforge.flows.tool import Tool, tool
    from flowforge.flows.workflow_tools import WorkflowTool, workflow
    from flowforge.language.diagnostics import DiagnosticsError
    from flowforge.runtime.checking import check, load
    from flowforge.runtime.events import Event
    from flowforge.runtime.handle import RunHandle
    from flowforge.runtime.run import RunCancelledError, RunFailedError
    from flowforge.secrets.secret import Secret, secret
    from flowforge.tools.argument_grammars import Grammar

__all__ = [  # noqa: RUF022 - grouped by what they are for
    # Workflow files
    "check",
    "load",
    # Workflows in Python
    "Branch",
    "BranchTask",
    "BranchTasks",
    "Chat",
    "Flow",
    "Fork",
    "Grammar",
    "McpTools",
    "Retry",
    "Round",
    "Run",
    "Score",
    "Secret",
    "TextStream",
    "Tool",
    "ValueStream",
    "WorkflowTool",
    "flow",
    "mcp",
    "rounds",
    "secret",
    "tool",
    "workflow",
    # Runs
    "Event",
    "RunHandle",
    "run",
    "run_sync",
    "start",
    "testing",
    # Where tokens come from
    "Backend",
    "ScriptBackend",
    "ScriptedAnswer",
    # What sees prompts and answers
    "Blocked",
    "Hooks",
    "Prompted",
    "SeenTurn",
    "Written",
    "hooked",
    # Errors
    "ChatBusy",
    "DiagnosticsError",
    "EngineError",
    "FlowForgeError",
    "InternalError",
    "Location",
    "RunCancelledError",
    "RunFailedError",
    "Stopped",
    "ToolError",
    "WorkflowError",
]

_HOMES = {
    "Backend": "flowforge.backends.protocol",
    "Blocked": "flowforge.backends.hooks",
    "Branch": "flowforge.flows.chat",
    "BranchTask": "flowforge.flows.branches",
    "BranchTasks": "flowforge.flows.branches",
    "Chat": "flowforge.flows.chat",
    "ChatBusy": "flowforge.flows.failures",
    "DiagnosticsError": "flowforge.language.diagnostics",
    "EngineError": "flowforge.errors",
    "Event": "flowforge.runtime.events",
    "Flow": "flowforge.flows.flow",
    "FlowForgeError": "flowforge.errors",
    "Fork": "flowforge.flows.chat",
    "Grammar": "flowforge.tools.argument_grammars",
    "Hooks": "flowforge.backends.hooks",
    "InternalError": "flowforge.errors",
    "Location": "flowforge.errors",
    "McpTools": "flowforge.flows.servers",
    "Prompted": "flowforge.backends.hooks",
    "Retry": "flowforge.flows.retries",
    "Round": "flowforge.flows.rounds",
    "Run": "flowforge.flows.run",
    "RunCancelledError": "flowforge.runtime.run",
    "RunFailedError": "flowforge.runtime.run",
    "RunHandle": "flowforge.runtime.handle",
    "Score": "flowforge.backends.protocol",
    "ScriptBackend": "flowforge.backends.script",
    "ScriptedAnswer": "flowforge.backends.script",
    "Secret": "flowforge.secrets.secret",
    "SeenTurn": "flowforge.backends.hooks",
    "Stopped": "flowforge.flows.failures",
    "TextStream": "flowforge.flows.streams",
    "Tool": "flowforge.flows.tool",
    "ToolError": "flowforge.errors",
    "ValueStream": "flowforge.flows.streams",
    "WorkflowError": "flowforge.errors",
    "WorkflowTool": "flowforge.flows.workflow_tools",
    "Written": "flowforge.backends.hooks",
    "check": "flowforge.runtime.checking",
    "flow": "flowforge.flows.flow",
    "hooked": "flowforge.backends.hooks",
    "load": "flowforge.runtime.checking",
    "mcp": "flowforge.flows.servers",
    "rounds": "flowforge.flows.rounds",
    "run": "flowforge.flows.starting",
    "run_sync": "flowforge.flows.starting",
    "secret": "flowforge.secrets.secret",
    "start": "flowforge.flows.starting",
    "tool": "flowforge.flows.tool",
    "workflow": "flowforge.flows.workflow_tools",
}


if not TYPE_CHECKING:  # A checker that sees `__getattr__` accepts every name.

    def __getattr__(name: str) -> object:
        """Import a public name from its home."""
        if name == "testing":
            return import_module("flowforge.testing")
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'flowforge' has no attribute {name!r}")
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
