"""The scheduler: a report comes in, commands and facts go out; no loop, no clock, no engine.

The state belongs to the caller and is changed here alone. The same reports in the same order give
the same decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from flowforge.errors import FlowForgeError, InternalError
from flowforge.runtime.commands import (
    Answered,
    Begin,
    Broken,
    Cancelled,
    CancelRun,
    Decision,
    Failed,
    Opened,
    Outcome,
    Report,
    Returned,
    Stopped,
    Succeeded,
    TimerFired,
)
from flowforge.runtime.events import RunStarted, StepFailed
from flowforge.runtime.graph import graph_of
from flowforge.runtime.state import Failure, Phase, RunState, ScopeState
from flowforge.runtime.steps import Turn
from flowforge.runtime.verbs.rules import ReturnedValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.verbs.rules import Validator


def new_state(
    program: Program, inputs: Mapping[str, JsonValue], validate: Validator, *, seed: int = 0
) -> RunState:
    """The state of a run that has not begun.

    inputs: complete, as `resolve_inputs` gives them. seed: for sampling and for back-off.
    """
    return RunState(program, graph_of(program.steps), inputs, validate, seed)


def advance(state: RunState, report: Report) -> Decision:
    """Take one report into the state and decide what follows. Reports after the end change nothing.

    Raises InternalError when the report contradicts the state.
    """
    if state.phase is Phase.ENDED:
        return Decision((), (), None)
    turn = Turn(state)
    _dispatch(turn, report)
    turn.settle()
    outcome = None
    if state.top is not None and state.top.is_closed:
        outcome = _outcome(turn, state.top)
        state.phase = Phase.ENDED
    return Decision(tuple(turn.commands), tuple(turn.facts), outcome)


def _dispatch(turn: Turn, report: Report) -> None:
    state = turn.state
    match report:
        case Begin():
            turn.facts.append(RunStarted(state.program.name, state.inputs, state.seed))
            variables: dict[str, JsonValue] = {"inputs": dict(state.inputs)}
            state.top = ScopeState("", "", state.graph, variables, state.program.tools)
            turn.open_scope(state.top)
        case Opened(path):
            turn.opened(path)
        case Answered(path, done):
            turn.work_ended(path, done)
        case Returned(path, value):
            turn.work_ended(path, ReturnedValue(value))
        case Failed(path, error):
            turn.work_ended(path, error)
        case Stopped(path):
            turn.work_ended(path, None)
        case TimerFired(timer):
            turn.timer_fired(timer)
        case CancelRun():
            if state.top is None:
                raise InternalError("IN504", "a run was cancelled before it began")
            if not state.top.is_stopping:
                state.phase = Phase.CANCELLING
            turn.stop_scope(state.top)
        case _:
            assert_never(report)


def _outcome(turn: Turn, top: ScopeState) -> Outcome:
    if turn.state.phase is Phase.CANCELLING:
        return Cancelled()
    if top.failures:
        return Broken(tuple(top.failures))
    outputs: dict[str, JsonValue] = {}
    failures: list[Failure] = []
    for name, output in turn.state.program.outputs.items():
        try:
            outputs[name] = output.value.evaluate(top)
        except FlowForgeError as error:
            path = f"outputs.{name}"
            turn.facts.append(StepFailed(path, error.code, error.message, error.help))
            failures.append(Failure(path, error))
    return Broken(tuple(failures)) if failures else Succeeded(outputs)
