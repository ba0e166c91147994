"""The scheduler: a report comes in, commands and facts go out; no loop, no clock, no engine.

The state belongs to the caller and is changed here alone. The same reports in the same order give
the same decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from flowforge.errors import FlowForgeError, InternalError
from flowforge.runtime.cancelling import cancel_one
from flowforge.runtime.coming_prompts import expect_prompts
from flowforge.runtime.commands import (
    Answered,
    Begin,
    Broken,
    Cancelled,
    CancelRun,
    CancelStep,
    Decision,
    Failed,
    Opened,
    Outcome,
    PartClosed,
    Report,
    Returned,
    Stopped,
    Succeeded,
    TimerFired,
)
from flowforge.runtime.consequences import Consequences
from flowforge.runtime.ends import check_scope, conversation_opened, timer_fired, work_ended
from flowforge.runtime.events import RunStarted, StepCached
from flowforge.runtime.failures import failure_event
from flowforge.runtime.foresight import foresee_branch
from flowforge.runtime.graph import graph_of
from flowforge.runtime.policy import WHOLE_POLICY
from flowforge.runtime.preparing import prepare_coming
from flowforge.runtime.scopes import open_scope
from flowforge.runtime.stages import check_step, start_step
from flowforge.runtime.state import Failure, Phase, RunState, ScopeState, StepState
from flowforge.runtime.verbs.rules import ReturnedValue
from flowforge.runtime.verdicts import stop_scope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.errors import Location
    from flowforge.grammars.tool_formats import ToolDefinition
    from flowforge.language.program import JsonValue, Program
    from flowforge.language.token_meter import TokenMeter
    from flowforge.runtime.policy import RunPolicy
    from flowforge.runtime.verbs.rules import Validator


def new_state(
    program: Program,
    inputs: Mapping[str, JsonValue],
    validate: Validator,
    *,
    seed: int = 0,
    meter: TokenMeter | None = None,
    offered: Mapping[Location, tuple[ToolDefinition, ...]] | None = None,
    policy: RunPolicy = WHOLE_POLICY,
) -> RunState:
    """The state of a run that has not begun.

    inputs: complete, as `resolve_inputs` gives them. seed: for sampling and for back-off.
    meter: for expressions that count tokens. offered: what models are told of the tools. policy:
    what is made of what is known.
    """
    graph = graph_of(program.steps)
    return RunState(program, graph, inputs, validate, seed, meter, offered or {}, policy)


def advance(state: RunState, *reports: Report) -> Decision:
    """Take a report into the state and decide what follows. Reports after the end change nothing.

    Several are taken as if they had come at one time: nothing is begun between them. Raises
    InternalError when a report contradicts the state.
    """
    if state.phase is Phase.ENDED:
        return Decision((), (), None)
    after = Consequences(state)
    for report in reports:
        _take(after, report)
    _settle(after)
    prepare_coming(after)
    expect_prompts(after)
    outcome = None
    if state.top is not None and state.top.is_closed:
        outcome = _outcome(after, state.top)
        state.phase = Phase.ENDED
    return Decision(tuple(after.commands), tuple(after.facts), outcome)


def _take(after: Consequences, report: Report) -> None:
    state = after.state
    match report:
        case Begin():
            after.facts.append(RunStarted(state.program.name, state.inputs, state.seed))
            variables: dict[str, JsonValue] = {"inputs": dict(state.inputs)}
            state.top = ScopeState("", "", state.graph, variables, state.program.tools, state.meter)
            open_scope(after, state.top)
        case Opened(path):
            conversation_opened(after, path)
        case PartClosed(path, key, value):
            foresee_branch(after, path, key, value)
        case Answered(path, done, is_cached):
            if is_cached:
                after.facts.append(StepCached(path))
            work_ended(after, path, done)
        case Returned(path, value, is_cached):
            if is_cached:
                after.facts.append(StepCached(path))
            work_ended(after, path, ReturnedValue(value))
        case Failed(path, error):
            work_ended(after, path, error)
        case Stopped(path):
            work_ended(after, path, None)
        case TimerFired(timer):
            timer_fired(after, timer)
        case CancelStep(path):
            cancel_one(after, path)
        case CancelRun():
            if state.top is None:
                raise InternalError("IN504", "a run was cancelled before it began")
            if not state.top.is_stopping:
                state.phase = Phase.CANCELLING
            stop_scope(after, state.top)
        case _:
            assert_never(report)


def _settle(after: Consequences) -> None:
    """Carry out verdicts, close scopes and start steps until there is nothing left to do."""
    while True:
        if (changed := after.next_check()) is not None:
            if isinstance(changed, StepState):
                check_step(after, changed)
            else:
                check_scope(after, changed)
        elif (step := after.next_ready()) is not None:
            start_step(after, step)
        else:
            return


def _outcome(after: Consequences, top: ScopeState) -> Outcome:
    if after.state.phase is Phase.CANCELLING:
        return Cancelled()
    if top.failures:
        return Broken(tuple(top.failures))
    outputs: dict[str, JsonValue] = {}
    failures: list[Failure] = []
    for name, output in after.state.program.outputs.items():
        try:
            outputs[name] = output.value.evaluate(top)
        except FlowForgeError as error:
            failure = Failure(f"outputs.{name}", error)
            after.facts.append(failure_event(failure))
            failures.append(failure)
    return Broken(tuple(failures)) if failures else Succeeded(outputs)
