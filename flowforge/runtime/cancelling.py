"""Cancelling one step, branch or call of a run that goes on.

To the run it is a failure like others: `catch` and the joins say what follows, and only what asks
for its code by name tries it again. A `finally` is left its time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from flowforge.errors import WorkflowError
from flowforge.language.diagnostics import near_miss
from flowforge.runtime.commands import Stop
from flowforge.runtime.stages import fail_scope
from flowforge.runtime.state import Fails, Failure, ScopeState, Stage, Status, StepState, Work
from flowforge.runtime.verdicts import decide

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.runtime.consequences import Consequences
    from flowforge.runtime.state import RunState

CANCELLED_BY_ORDER = "WF517"

_Target: TypeAlias = "StepState | ScopeState | Work"


def cancelled_by_order(path: str) -> WorkflowError:
    """WF517: somebody wanted it gone."""
    return WorkflowError(
        CANCELLED_BY_ORDER,
        f"{path!r} was cancelled by an order",
        help="'catch', or a join other than 'all', lets a run go on without it",
    )


def name_to_cancel(state: RunState, path: str) -> str:
    """The name by which `CancelStep` finds what runs under a path: that of its try.

    Raises WorkflowError WF518 where nothing that could be cancelled has it.
    """
    running = _running(state)
    if path in running:
        return path
    step = state.steps.get(path)
    if step is not None and step.attempt_path in running:
        return step.attempt_path
    raise not_running(path, running)


def not_running(path: str, running: Iterable[str]) -> WorkflowError:
    """WF518: a path is of nothing that could be cancelled now."""
    miss = near_miss(path, running)
    return WorkflowError(
        "WF518",
        f"nothing that runs is called {path!r}",
        help=f"did you mean {miss!r}?" if miss else "'flowforge watch' shows what runs",
    )


def can_cancel(state: RunState, path: str) -> bool:
    """Whether a `CancelStep` of this path would change anything."""
    return path in _running(state)


def cancel_one(after: Consequences, path: str) -> None:
    """Fail what runs under a path; what has ended meanwhile stays as it is."""
    target = _running(after.state).get(path)
    error = cancelled_by_order(path)
    match target:
        case StepState():
            error.location = target.node.step.location
            if target.stage is Stage.BACKOFF:
                # Its next try will not come: this is how the last one ends.
                target.stage = Stage.TRY
            decide(after, target, Fails(error))
        case ScopeState():
            fail_scope(after, target, [Failure(path, error)])
        case Work():
            after.state.works[path] = replace(target, error=error)
            after.commands.append(Stop(path))
        case None:
            pass


def _running(state: RunState) -> dict[str, _Target]:
    """What can be cancelled: steps by their tries, branches, and single works of a step."""
    found: dict[str, _Target] = {}
    for step in state.steps.values():
        if step.status is not Status.RUNNING or step.verdict is not None:
            continue
        if step.stage is Stage.FINALLY:
            continue
        found[step.attempt_path] = step
        for scope in step.scopes.values():
            if not scope.is_stopping:
                found.setdefault(scope.prefix[:-1], scope)
        for path in step.works:
            found.setdefault(path, state.works[path])
    return {
        path: one for path, one in found.items() if not isinstance(one, Work) or one.error is None
    }
