"""What a stage of a step comes to, and what is stopped for it.

Whatever ends a stage, be it a value, a failure, a timeout or a cancel, is a *verdict*: it is kept
until nothing runs for the step any more, and only then carried out (`stages`). So a step never has
an end while a work of it still holds memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import FlowForgeError
from flowforge.runtime.commands import Stop
from flowforge.runtime.conversations import drop_claims
from flowforge.runtime.foreseen import give_up_foreseen
from flowforge.runtime.state import Cancels, Fails, Stage, Status
from flowforge.runtime.verbs.rules import Finish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.language.program import JsonValue
    from flowforge.runtime.consequences import Consequences
    from flowforge.runtime.state import ScopeState, StepState, Verdict


def decide(after: Consequences, step: StepState, verdict: Verdict) -> None:
    """What the stage comes to; the first verdict stands."""
    if step.verdict is None:
        step.verdict = verdict
        _stop_inside(after, step)


def decide_by(
    after: Consequences,
    step: StepState,
    evaluate: Callable[[Mapping[str, JsonValue]], JsonValue],
    scope: Mapping[str, JsonValue],
) -> None:
    """The stage comes to the value of an expression, or fails with what that raises."""
    try:
        decide(after, step, Finish(evaluate(scope), has_conversation=False))
    except FlowForgeError as error:
        decide(after, step, Fails(error))


def stop_scope(after: Consequences, scope: ScopeState) -> None:
    """Nothing new starts in it, and what runs is cancelled."""
    if scope.is_stopping or scope.is_closed:
        return
    scope.is_stopping = True
    # Last first: what is inside a branch is told before the step around it.
    for step in reversed(list(scope.steps.values())):
        if step.status is Status.WAITING:
            step.move("cancel")
            give_up_foreseen(after, step)
            drop_claims(after, step)
        elif step.status is Status.RUNNING:
            _cancel(after, step)
    after.check(scope)


def _cancel(after: Consequences, step: StepState) -> None:
    """Somebody outside wants it gone: only a `finally` is still allowed its time."""
    step.is_cancelled = True
    if step.stage is not Stage.FINALLY:
        step.verdict = Cancels()
        _stop_inside(after, step)


def _stop_inside(after: Consequences, step: StepState) -> None:
    after.stop_timers(step)
    after.commands += [Stop(path) for path in sorted(step.works)]
    for scope in list(step.scopes.values()):
        stop_scope(after, scope)
    after.check(step)
