"""What ends under a step: its works, its branches, its times; and what the step makes of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from flowforge.backends.protocol import GenerationDone
from flowforge.errors import FlowForgeError, InternalError
from flowforge.language.program import Block
from flowforge.runtime.actions import tell_verb
from flowforge.runtime.conversations import drop_claims
from flowforge.runtime.events import StepCancelled, StepFinished
from flowforge.runtime.failures import endless_finally, failure_event, timed_out
from flowforge.runtime.stages import try_step
from flowforge.runtime.state import Cancels, Fails, Failure, Stage
from flowforge.runtime.verbs.rules import BranchEnd, WorkEnd
from flowforge.runtime.verdicts import decide, decide_by, stop_scope

if TYPE_CHECKING:
    from typing import TypeAlias

    from flowforge.runtime.consequences import Consequences
    from flowforge.runtime.events import Fact
    from flowforge.runtime.state import RunState, ScopeState, StepState, Work
    from flowforge.runtime.verbs.rules import ReturnedValue

    WorkResult: TypeAlias = GenerationDone | ReturnedValue | FlowForgeError | None
    """What a work came to; None when it was stopped."""


def conversation_opened(after: Consequences, path: str) -> None:
    """The conversation of a work is there: what it forked may go, unless it is forked again."""
    step = _work(after.state, path).step
    step.num_forking -= 1
    if step.num_forking == 0 and not step.may_fork_again:
        drop_claims(after, step)


def work_ended(after: Consequences, path: str, result: WorkResult) -> None:
    """A work is not in flight any more."""
    work = _work(after.state, path)
    step = work.step
    del after.state.works[path]
    step.works.remove(path)
    result = work.error if result is None else result
    if isinstance(result, FlowForgeError) and result.location is None:
        # Backends know no file: that a prompt is too long is said where the prompt is.
        result.location = step.node.step.location
    if work.key is not None:
        after.facts.append(_end_of_sample(path, result))
    after.check(step)
    if isinstance(step.verdict, Cancels) and isinstance(result, FlowForgeError):
        # It failed by itself before the cancel reached it: that is told, too.
        step.verdict = Fails(result)
    elif step.verdict is None:
        if result is None:
            raise InternalError("IN505", f"{path!r} was stopped, and nothing asked for it")
        tell_verb(after, step, WorkEnd(work.key, result))


def timer_fired(after: Consequences, name: str) -> None:
    """A timer's time has come; one that was stopped meanwhile is nobody's any more."""
    timer = after.state.timers.pop(name, None)
    if timer is None:
        return
    step = timer.step
    step.timers.remove(name)
    match timer.purpose:
        case "timeout":
            decide(after, step, Fails(timed_out(step)))
        case "backoff":
            try_step(after, step)
        case "wait":
            tell_verb(after, step, None)
        case "finally":
            step.failures.append(Failure(step.attempt_path, endless_finally(step)))
            for scope in list(step.scopes.values()):
                stop_scope(after, scope)
        case _:
            assert_never(timer.purpose)


def check_scope(after: Consequences, scope: ScopeState) -> None:
    """Close it if nothing runs in it and nothing will; its owner takes what it came to."""
    if scope.is_closed or not scope.is_over:
        return
    owner = scope.owner
    scope.is_closed = True
    if owner is None:
        return
    del owner.scopes[scope.key]
    owner.failures += scope.failures
    after.check(owner)
    if owner.verdict is None:
        _take_branch(after, owner, scope)
    # Its values live on in the owner; its instances need not, however many items there are.
    for step in scope.steps.values():
        del after.state.steps[step.path]
    # And without waiting for the collector: a step and its scope name each other.
    scope.steps.clear()


def _take_branch(after: Consequences, owner: StepState, scope: ScopeState) -> None:
    match owner.stage:
        case Stage.TRY:
            end = BranchEnd(scope.key, scope.prefix[:-1], scope, tuple(scope.failures))
            tell_verb(after, owner, end)
        case Stage.CATCH:
            catch = owner.node.step.catch
            assert catch is not None
            assert isinstance(catch.body, Block)
            decide_by(after, owner, catch.body.result.evaluate, scope)
        case Stage.FINALLY:
            assert owner.pending is not None
            owner.verdict = Fails() if owner.failures else owner.pending
        case Stage.BACKOFF:
            raise InternalError("IN506", f"step {owner.path!r} had a branch while it waited")


def _work(state: RunState, path: str) -> Work:
    work = state.works.get(path)
    if work is None:
        raise InternalError("IN505", f"a report names {path!r}, which is not in flight")
    return work


def _end_of_sample(path: str, result: WorkResult) -> Fact:
    if result is None:
        return StepCancelled(path)
    if isinstance(result, FlowForgeError):
        return failure_event(Failure(path, result))
    if isinstance(result, GenerationDone):
        return StepFinished(path, result.text, result.finish_reason, result.usage)
    return StepFinished(path, result.value)
