"""The stages of a step instance: its tries, the waits between them, its `catch`, its `finally`.

A step instance tries its verb; a try may be followed by another (`retry`), the last one by `catch`,
and everything by `finally`. What ends a stage is a verdict, which waits until nothing runs for the
step any more: `check_step`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import FlowForgeError
from flowforge.language.program import Block
from flowforge.runtime.actions import start_verb, work_path
from flowforge.runtime.conversations import drop_claims, keep_only, release_all
from flowforge.runtime.events import (
    StepCancelled,
    StepCaught,
    StepFinished,
    StepRetried,
    StepSkipped,
    StepStarted,
)
from flowforge.runtime.failures import FINALLY_LIMIT_S, failures_of, step_failed
from flowforge.runtime.foreseen import give_up_branches_over, give_up_foreseen
from flowforge.runtime.graph import CATCH, FINALLY
from flowforge.runtime.joins import error_value
from flowforge.runtime.layers import Layered
from flowforge.runtime.next_uses import tell_next_uses
from flowforge.runtime.retries import backoff_s, is_worth_trying, lacks_branches
from flowforge.runtime.scopes import open_body
from flowforge.runtime.state import Fails, Stage, Status
from flowforge.runtime.verbs import rules_of
from flowforge.runtime.verbs.rules import Finish, OpenBranch, holds
from flowforge.runtime.verdicts import decide, decide_by, stop_scope

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue, Retry
    from flowforge.runtime.consequences import Consequences
    from flowforge.runtime.state import Failure, ScopeState, StepState, Verdict


def start_step(after: Consequences, step: StepState) -> None:
    """Its needs have values: try it, or skip it if it is not wanted or has nothing to continue."""
    when = step.node.step.when
    try:
        is_wanted = when is None or holds(when, step.scope)
    except FlowForgeError as error:
        _begin(after, step)
        decide(after, step, Fails(error))
        return
    if is_wanted and _has_sources(step):
        _begin(after, step)
        try_step(after, step)
        return
    step.move("skip")
    after.facts.append(StepSkipped(step.path))
    drop_claims(after, step)
    _tell_dependents(after, step)


def try_step(after: Consequences, step: StepState) -> None:
    """Begin the try whose number the step has."""
    if step.stage is Stage.BACKOFF:
        _tell_start(after, step)
    step.stage = Stage.TRY
    step.memory = None
    step.failures = []
    step.num_forking = 0
    if step.node.step.timeout_s is not None:
        after.start_timer(step, "timeout", step.node.step.timeout_s)
    start_verb(after, step)


def check_step(after: Consequences, step: StepState) -> None:
    """Carry out its verdict if it has one and nothing runs for it any more."""
    if step.status is not Status.RUNNING or step.verdict is None or step.is_busy:
        return
    verdict, step.verdict = step.verdict, None
    if step.stage is Stage.FINALLY:
        _end(after, step, verdict)
    elif isinstance(verdict, Fails) and step.stage is Stage.TRY and not step.is_cancelled:
        _after_failure(after, step, verdict)
    else:
        _finally(after, step, verdict)


def _has_sources(step: StepState) -> bool:
    verb = step.node.step.verb
    names = rules_of(verb).continues(verb)
    return all(step.scope.find_step(name).conversation is not None for name in names)


def _begin(after: Consequences, step: StepState) -> None:
    step.move("start")
    step.scope.num_running += 1
    step.attempt = 1
    _tell_start(after, step)


def _tell_start(after: Consequences, step: StepState) -> None:
    rules, verb = rules_of(step.node.step.verb), step.node.step.verb
    continued = [step.scope.find_step(name).conversation for name in rules.continues(verb)]
    first = continued[0] if continued else None
    after.facts.append(StepStarted(step.attempt_path, rules.word, first))


def _after_failure(after: Consequences, step: StepState, verdict: Fails) -> None:
    failures = failures_of(step, verdict)
    is_in_vain = lacks_branches(verdict.error, step.failures)
    give_up_branches_over(after, step)
    release_all(after, step)
    retry, catch = step.node.step.retry, step.node.step.catch
    is_worth_it = retry is not None and all(is_worth_trying(retry, one.error) for one in failures)
    if retry is not None and step.attempt < retry.attempts and is_worth_it and not is_in_vain:
        _retry(after, step, failures, retry)
    elif catch is not None and (not catch.codes or failures[0].error.code.startswith(catch.codes)):
        _catch(after, step, failures)
    else:
        _finally(after, step, verdict)


def _retry(after: Consequences, step: StepState, failures: list[Failure], retry: Retry) -> None:
    delay_s = backoff_s(retry, step.attempt, after.state.seed, step.attempt_path)
    failed = step_failed(step, failures)
    step.attempt += 1
    after.facts.append(
        StepRetried(
            failed.path, failed.code, failed.message, failed.help, step.attempt_path, delay_s
        )
    )
    step.stage = Stage.BACKOFF
    after.start_timer(step, "backoff", delay_s)


def _catch(after: Consequences, step: StepState, failures: list[Failure]) -> None:
    catch = step.node.step.catch
    assert catch is not None
    failed = step_failed(step, failures)
    after.facts.append(StepCaught(failed.path, failed.code, failed.message, failed.help))
    step.stage = Stage.CATCH
    step.failures = []
    variables: dict[str, JsonValue] = {catch.variable: error_value(failures[0])}
    if isinstance(catch.body, Block):
        open_body(after, step, OpenBranch(CATCH, CATCH, CATCH, variables, is_last=True))
    else:
        decide_by(after, step, catch.body.evaluate, Layered(variables, step.scope))


def _finally(after: Consequences, step: StepState, verdict: Verdict) -> None:
    if step.node.step.finally_block is None:
        _end(after, step, verdict)
        return
    # What the `finally` adds to failures must not hide them, and those that did not matter go.
    step.failures = failures_of(step, verdict) if isinstance(verdict, Fails) else []
    if isinstance(verdict, Fails):
        verdict = Fails()
    step.stage = Stage.FINALLY
    step.pending = verdict
    after.start_timer(step, "finally", FINALLY_LIMIT_S)
    open_body(after, step, OpenBranch(FINALLY, FINALLY, FINALLY, {}, is_last=True))


def _end(after: Consequences, step: StepState, verdict: Verdict) -> None:
    after.stop_timers(step)
    give_up_foreseen(after, step)
    if not isinstance(verdict, Finish):
        give_up_branches_over(after, step)
    step.scope.num_running -= 1
    after.check(step.scope)
    if isinstance(verdict, Finish) and not step.is_cancelled:
        _finish(after, step, verdict)
    elif isinstance(verdict, Fails):
        _fail(after, step, verdict)
    else:
        step.move("cancel")
        after.facts.append(StepCancelled(step.attempt_path))
        release_all(after, step)
        drop_claims(after, step)


def _finish(after: Consequences, step: StepState, finish: Finish) -> None:
    step.move("finish")
    step.value = finish.value
    path = step.attempt_path
    after.facts.append(StepFinished(path, finish.value, finish.finish_reason, finish.usage))
    kept = work_path(path, finish.key) if finish.has_conversation else None
    keep_only(after, step, kept)
    drop_claims(after, step)
    _tell_dependents(after, step)
    tell_next_uses(after, step.scope)


def _fail(after: Consequences, step: StepState, verdict: Fails) -> None:
    failures = failures_of(step, verdict)
    step.move("fail")
    after.facts.append(step_failed(step, failures))
    release_all(after, step)
    drop_claims(after, step)
    fail_scope(after, step.scope, failures)


def fail_scope(after: Consequences, scope: ScopeState, failures: list[Failure]) -> None:
    """A scope comes to these failures: nothing else of it goes on."""
    scope.failures += failures
    stop_scope(after, scope)
    owner = scope.owner
    if owner is None or owner.stage is Stage.FINALLY:
        return
    verb = owner.node.step.verb
    if owner.stage is Stage.CATCH or rules_of(verb).fails_fast(verb):
        decide(after, owner, Fails())


def _tell_dependents(after: Consequences, step: StepState) -> None:
    scope = step.scope
    scope.num_unfinished -= 1
    after.check(scope)
    for name in step.node.dependents:
        dependent = scope.steps[name]
        dependent.num_awaited -= 1
        if dependent.num_awaited == 0 and dependent.status is Status.WAITING:
            after.make_ready(dependent)
