from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from programs import block, for_each, gen, never, program

from flowforge.backends.protocol import GenerationDone, Usage
from flowforge.collector import resting_collector
from flowforge.errors import InternalError
from flowforge.language.answer_specs import SamplingSpec
from flowforge.runtime.commands import (
    Answered,
    Begin,
    Broken,
    CancelRun,
    Decision,
    Opened,
    ReleaseConversation,
    Said,
    StartGeneration,
    Stopped,
    Succeeded,
)
from flowforge.runtime.core import advance, new_state
from flowforge.runtime.state import TRANSITIONS, ScopeState, Status, StepState

if TYPE_CHECKING:
    from flowforge.language.program import Step
    from flowforge.runtime.state import RunState


def state_of(*steps: Step, output: str = "1") -> RunState:
    return new_state(program(*steps, out=output), {"topic": "x"}, never)


def answered(path: str, text: str = "ok") -> Answered:
    return Answered(path, GenerationDone(text, "stop", Usage()))


def started(decision: Decision) -> list[str]:
    return [command.path for command in decision.commands if isinstance(command, StartGeneration)]


def num_instances() -> int:
    return sum(type(one) in {ScopeState, StepState} for one in gc.get_objects())


def test_steps_that_wait_for_nobody_start_together_in_file_order() -> None:
    state = state_of(gen("b"), gen("a"), gen("c", "a"))

    assert ["b", "a"] == started(advance(state, Begin()))


def test_a_step_starts_with_the_last_value_it_needs() -> None:
    state = state_of(
        gen("a"), gen("b"), gen("c", "a", "b", user="${ a }", sampling=SamplingSpec(max_tokens=7))
    )
    advance(state, Begin())

    assert [] == started(advance(state, answered("a", "text")))
    decision = advance(state, answered("b"))

    assert ["c"] == started(decision)
    command = decision.commands[-1]
    assert isinstance(command, StartGeneration)
    assert (Said("user", "text", values=((0, 4),)),) == command.said
    assert (7, "c") == (command.request.sampling.max_tokens, command.request.label)


def test_a_conversation_that_nobody_continues_is_released_with_its_step() -> None:
    state = state_of(gen("a"), gen("b"))
    advance(state, Begin())

    assert (ReleaseConversation("a"),) == advance(state, answered("a")).commands


def test_a_conversation_is_held_until_the_fork_is_there_and_not_longer() -> None:
    state = state_of(gen("a"), gen("b", "a", from_step="a"))
    advance(state, Begin())
    advance(state, Opened("a"))

    assert ["b"] == started(advance(state, answered("a")))
    assert (ReleaseConversation("a"),) == advance(state, Opened("b")).commands


def test_a_value_that_cannot_be_rendered_fails_its_step() -> None:
    state = state_of(gen("a", user="${ null }"))

    outcome = advance(state, Begin()).outcome

    assert isinstance(outcome, Broken)
    assert [("a", "WF401")] == [(one.path, one.error.code) for one in outcome.failures]


def test_a_loop_over_a_text_fails_and_says_what_it_got() -> None:
    state = state_of(for_each("loop", '"text"', block(gen("inner"))))

    outcome = advance(state, Begin()).outcome

    assert isinstance(outcome, Broken)
    assert "WF503" == outcome.failures[0].error.code
    assert "a string, expected a list" in outcome.failures[0].error.message


def test_a_branch_that_ended_leaves_nothing_to_the_garbage_collector() -> None:
    state = state_of(for_each("loop", list(range(10)), block(gen("inner")), limit=2))
    advance(state, Begin())

    gc.collect()
    with resting_collector():
        num_before = num_instances()
        for idx in range(8):
            advance(state, Opened(f"loop[{idx}]/inner"))
            advance(state, answered(f"loop[{idx}]/inner"))

        assert num_before == num_instances()


def test_an_output_that_cannot_be_computed_is_a_failure_with_its_name() -> None:
    state = state_of(gen("a"), output="a[5]")
    advance(state, Begin())

    outcome = advance(state, answered("a")).outcome

    assert isinstance(outcome, Broken)
    assert ["outputs.out"] == [failure.path for failure in outcome.failures]


def test_a_program_without_steps_has_its_outputs_at_once() -> None:
    assert Succeeded({"out": 1}) == advance(state_of(), Begin()).outcome


def test_reports_after_the_end_change_nothing() -> None:
    state = state_of()
    advance(state, Begin())

    assert Decision((), (), None) == advance(state, CancelRun())


@pytest.mark.parametrize(
    ("report", "code"),
    [(answered("nobody"), "IN505"), (Stopped("b"), "IN505"), (Opened("nobody"), "IN505")],
)
def test_a_report_that_contradicts_the_state_is_our_fault(
    report: Answered | Stopped | Opened, code: str
) -> None:
    state = state_of(gen("a"), gen("b", "a"))
    advance(state, Begin())

    with pytest.raises(InternalError) as caught:
        advance(state, report)

    assert code == caught.value.code


def test_a_step_that_has_ended_never_moves_again() -> None:
    ended = {Status.FINISHED, Status.FAILED, Status.CANCELLED}

    assert set() == {status for status, _ in TRANSITIONS} & ended
