"""Scopes are opened: the instances of a block, and who of them waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.runtime.state import ScopeState, StepState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import ToolSpec
    from flowforge.runtime.consequences import Consequences
    from flowforge.runtime.verbs.rules import OpenBranch


def open_scope(after: Consequences, scope: ScopeState) -> None:
    """Make the instances of a block; those that wait for nobody are ready."""
    if scope.owner is not None:
        scope.owner.scopes[scope.key] = scope
    for name, node in scope.graph.nodes.items():
        path = scope.prefix + name
        step = StepState(path, node, scope, num_awaited=len(node.step.needs))
        scope.steps[name] = after.state.steps[path] = step
    scope.num_unfinished = len(scope.steps)
    for step in scope.steps.values():
        for name in step.node.continues:
            scope.find_step(name).num_claims += 1
        if step.num_awaited == 0:
            after.make_ready(step)
    after.check(scope)


def open_body(after: Consequences, step: StepState, branch: OpenBranch) -> None:
    """Open a block of the step."""
    open_scope(after, scope_of_body(step, branch))


def scope_of_body(step: StepState, branch: OpenBranch) -> ScopeState:
    """The scope of a block of the step's try, not opened.

    It sees the names around it unless it is a program's own.
    """
    outer = step.scope if branch.tools is None else None
    tools: Mapping[str, ToolSpec] = step.scope.tools if branch.tools is None else branch.tools
    graph = step.node.bodies[branch.body]
    prefix = f"{step.attempt_path}{branch.segment}/"
    meter = step.scope.meter
    return ScopeState(branch.key, prefix, graph, branch.variables, tools, meter, outer, owner=step)
