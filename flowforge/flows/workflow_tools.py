"""Workflows as tools of a chat's model: flows and files, with their inputs as arguments."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import anyio

from flowforge.errors import FlowForgeError, Location, ToolError, WorkflowError
from flowforge.flows.durations import seconds_of
from flowforge.flows.flow import Flow
from flowforge.flows.nested_runs import run_program
from flowforge.flows.scopes import SCOPE, Scope
from flowforge.flows.values import json_value
from flowforge.grammars.tool_formats import ToolDefinition
from flowforge.language.inputs import resolve_inputs
from flowforge.language.program import Program, ToolSpec
from flowforge.language.types import AnyType
from flowforge.runtime.checking import load
from flowforge.tools.definitions import definition_of_program, described, read_docstring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from flowforge.flows.session import FlowSession
    from flowforge.flows.tool import Effect
    from flowforge.language.program import JsonValue

T = TypeVar("T")
AnyFlow: TypeAlias = Flow[..., Any]


@dataclass(frozen=True, slots=True)
class WorkflowTool:
    """A workflow that models may call; made by `workflow`."""

    spec: ToolSpec
    workflow: AnyFlow | Program

    def __repr__(self) -> str:
        return f"WorkflowTool({self.spec.name}, effect={self.spec.effect})"

    @property
    def definition(self) -> ToolDefinition:
        """What models are told of it."""
        if isinstance(self.workflow, Program):
            return definition_of_program(self.spec, self.workflow)
        summary, of_inputs = read_docstring(inspect.getdoc(self.workflow) or "")
        parameters = described(self.workflow.json_schema(), of_inputs)
        return ToolDefinition(self.spec.name, self.spec.description or summary, parameters)

    async def call(
        self, session: FlowSession, arguments: Mapping[str, JsonValue], path: str
    ) -> JsonValue:
        """Run it as a part of a run, its steps below `path`; what it returns, or its outputs.

        Raises ToolError TL103 for arguments that do not fit, TL104, TL201 and TL202 as functions
        do, and a FlowForgeError of it as it is.
        """
        async with session.limit(self.spec):
            timeout_s = self.spec.timeout_s
            with anyio.move_on_after(timeout_s) as scope:
                return await self._run(session, arguments, path)
        assert scope.cancelled_caught, "a block that nobody stopped has returned or raised"
        raise self._error("TL202", path, f"did not return within its timeout of {timeout_s:g} s")

    async def _run(
        self, session: FlowSession, arguments: Mapping[str, JsonValue], path: str
    ) -> JsonValue:
        workflow = self.workflow
        if isinstance(workflow, Program):
            inputs = self._fitting(lambda: resolve_inputs(workflow, dict(arguments)), path)
            return await session.once(
                self.spec, arguments, path, lambda: run_program(workflow, inputs, session, path)
            )
        from flowforge.flows.run import Run

        values = self._fitting(lambda: workflow.resolve_inputs(arguments), path)
        SCOPE.set(Scope(f"{path}/"))
        try:
            result = await workflow.call(Run(session), values)
        except FlowForgeError:
            raise
        except Exception as error:
            reason = f"raised {type(error).__name__}: {error}"
            raise self._error("TL201", path, reason) from error
        try:
            return json_value(result)
        except ValueError as problem:
            reason = f"returned what is no JSON value: {problem}"
            raise self._error("TL104", path, reason) from problem

    def _fitting(self, resolve: Callable[[], T], path: str) -> T:
        try:
            return resolve()
        except WorkflowError as error:
            reason = f"got arguments that do not fit: {error.message}"
            raise self._error("TL103", path, reason) from error

    def _error(self, code: str, path: str, reason: str) -> ToolError:
        message = f"tool {self.spec.name!r}, called by {path!r}, {reason}"
        return ToolError(code, message, location=self.spec.location)


def workflow(
    workflow: AnyFlow | Program | str | Path,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "write",
    timeout: str | float | None = None,
    concurrency: int | None = None,
) -> WorkflowTool:
    """A workflow as a tool, for `Chat.gen(tools=…)`: its inputs are the arguments of a call.

        tools = [ff.workflow(summarize, effect="read"), ff.workflow("translate.yaml")]

    workflow: a flow, a workflow file, or a loaded program. name: as models know it; else the
    workflow's own. description: what models are told it does; else a flow's docstring, or the name
    of a file's workflow. effect, timeout, concurrency: as of `tool`. A call's steps are steps of
    the run that calls, below the call's path, and cost what they cost there.
    Raises DiagnosticsError for a file with problems, WorkflowError WF616 for a name that no tool
    can have.
    """
    if not isinstance(workflow, Flow | Program):
        workflow = load(workflow)
    own = name or workflow.name
    if not own.isascii() or not own.isidentifier() or "__" in own:
        raise WorkflowError(
            "WF616",
            f"a tool cannot be called {own!r}",
            help="give it a name of letters, digits and '_': workflow(…, name='summarize')",
        )
    spec = ToolSpec(
        name=own,
        function="",
        effect=effect,
        parameters=None,
        result=AnyType(),
        timeout_s=None if timeout is None else seconds_of(timeout),
        concurrency=concurrency,
        location=workflow.location if isinstance(workflow, Flow) else Location(workflow.file, 1, 1),
        description=description or "",
    )
    return WorkflowTool(spec, workflow)
