from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.backends.protocol import GenerationDone, Usage
from flowforge.errors import InternalError, Location
from flowforge.language.expression_nodes import Constant, ItemOf, Name
from flowforge.language.expressions import Expression
from flowforge.language.program import Block, ForEach, Gen, Output, Program, SamplingSpec, Step
from flowforge.language.templates import Template
from flowforge.language.types import AnyType
from flowforge.runtime.commands import (
    Answered,
    Begin,
    Broken,
    CancelRun,
    Decision,
    Opened,
    ReleaseConversation,
    StartGeneration,
    Stopped,
    Succeeded,
)
from flowforge.runtime.core import advance, new_state
from flowforge.runtime.state import TRANSITIONS, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.expression_nodes import Node
    from flowforge.language.program import JsonValue
    from flowforge.runtime.state import RunState

HERE = Location("test.yaml", 1, 1)


def expression(node: Node) -> Expression:
    return Expression("…", node, AnyType(), frozenset(), HERE)


def name(word: str) -> Node:
    return Name(0, 0, word)


def gen(step_name: str, user: str | Node = "go", *needs: str, from_step: str | None = None) -> Step:
    part = user if isinstance(user, str) else expression(user)
    verb = Gen(from_step, None, Template((part,), HERE), SamplingSpec(max_tokens=7), None)
    return Step(step_name, verb, frozenset(needs), AnyType(), HERE)


def state_of(*steps: Step, output: Node | None = None) -> RunState:
    node = Constant(0, 0, "done") if output is None else output
    outputs = {"out": Output("out", expression(node), HERE)}
    program = Program("p", "test.yaml", {}, {step.name: step for step in steps}, outputs)
    return new_state(program, {"topic": "x"}, never)


def never(text: str, schema: Mapping[str, JsonValue]) -> JsonValue:
    raise AssertionError(f"validated {text!r} under {schema}")


def answered(path: str, text: str = "ok") -> Answered:
    return Answered(path, GenerationDone(text, "stop", Usage()))


def started(decision: Decision) -> list[str]:
    return [command.path for command in decision.commands if isinstance(command, StartGeneration)]


def test_steps_that_wait_for_nobody_start_together_in_file_order() -> None:
    state = state_of(gen("b"), gen("a"), gen("c", "go", "a"))

    assert ["b", "a"] == started(advance(state, Begin()))


def test_a_step_starts_with_the_last_value_it_needs() -> None:
    state = state_of(gen("a"), gen("b"), gen("c", name("a"), "a", "b"))
    advance(state, Begin())

    assert [] == started(advance(state, answered("a", "text")))
    decision = advance(state, answered("b"))

    assert ["c"] == started(decision)
    command = decision.commands[-1]
    assert isinstance(command, StartGeneration)
    assert "text" == command.user
    assert (7, "c") == (command.request.sampling.max_tokens, command.request.label)


def test_a_conversation_that_nobody_continues_is_released_with_its_step() -> None:
    state = state_of(gen("a"), gen("b"))
    advance(state, Begin())

    assert (ReleaseConversation("a"),) == advance(state, answered("a")).commands


def test_a_conversation_is_held_until_the_fork_is_there_and_not_longer() -> None:
    state = state_of(gen("a"), gen("b", "go", "a", from_step="a"))
    advance(state, Begin())
    advance(state, Opened("a"))

    assert ["b"] == started(advance(state, answered("a")))
    assert (ReleaseConversation("a"),) == advance(state, Opened("b")).commands


def test_a_value_that_cannot_be_rendered_fails_its_step() -> None:
    state = state_of(gen("a", Constant(0, 0, None)))

    outcome = advance(state, Begin()).outcome

    assert isinstance(outcome, Broken)
    assert [("a", "WF401")] == [(one.path, one.error.code) for one in outcome.failures]


def test_a_loop_over_a_text_fails_and_says_what_it_got() -> None:
    body = Block({"inner": gen("inner")}, expression(name("inner")))
    loop = ForEach("x", expression(Constant(0, 0, "text")), None, body)
    state = state_of(Step("loop", loop, frozenset(), AnyType(), HERE))

    outcome = advance(state, Begin()).outcome

    assert isinstance(outcome, Broken)
    assert "WF503" == outcome.failures[0].error.code
    assert "a string, expected a list" in outcome.failures[0].error.message


def test_an_output_that_cannot_be_computed_is_a_failure_with_its_name() -> None:
    item = ItemOf(0, 0, name("a"), Constant(0, 0, 5))
    state = state_of(gen("a"), output=item)
    advance(state, Begin())

    outcome = advance(state, answered("a")).outcome

    assert isinstance(outcome, Broken)
    assert ["outputs.out"] == [failure.path for failure in outcome.failures]


def test_a_program_without_steps_has_its_outputs_at_once() -> None:
    assert Succeeded({"out": "done"}) == advance(state_of(), Begin()).outcome


def test_reports_after_the_end_change_nothing() -> None:
    state = state_of()
    advance(state, Begin())

    assert Decision((), (), None) == advance(state, CancelRun())


@pytest.mark.parametrize(
    ("report", "code"),
    [(answered("nobody"), "IN505"), (Stopped("b"), "IN505"), (Opened("nobody"), "IN504")],
)
def test_a_report_that_contradicts_the_state_is_our_fault(
    report: Answered | Stopped | Opened, code: str
) -> None:
    state = state_of(gen("a"), gen("b", "go", "a"))
    advance(state, Begin())

    with pytest.raises(InternalError) as caught:
        advance(state, report)

    assert code == caught.value.code


def test_a_step_that_has_ended_never_moves_again() -> None:
    ended = {Status.FINISHED, Status.FAILED, Status.CANCELLED}

    assert set() == {status for status, _ in TRANSITIONS} & ended
