"""A run says how soon each conversation that it holds is continued, from its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from programs import ask, call, gen, never, program, tool

from flowforge.backends.protocol import GenerationDone, Usage
from flowforge.runtime.commands import (
    Answered,
    Begin,
    Decision,
    ExpectUse,
    Opened,
    Returned,
)
from flowforge.runtime.core import advance, new_state

if TYPE_CHECKING:
    from flowforge.language.program import Step
    from flowforge.runtime.state import RunState


def begun(*steps: Step) -> RunState:
    state = new_state(program(*steps, out="1"), {"topic": "x"}, never)
    advance(state, Begin())
    return state


def ended(state: RunState, path: str) -> Decision:
    return advance(state, Answered(path, GenerationDone("ok", "stop", Usage())))


def told(decision: Decision) -> dict[str, float]:
    return {one.path: one.num_steps for one in decision.commands if isinstance(one, ExpectUse)}


def test_a_conversation_that_is_continued_at_once_is_needed_in_no_steps() -> None:
    state = begun(gen("a"), gen("b", "a", from_step="a"))

    assert {"a": 0} == told(ended(state, "a"))


def test_the_longest_chain_of_steps_before_counts_and_shortens_as_they_end() -> None:
    state = begun(
        gen("a"),
        gen("x"),
        gen("y", "x"),
        gen("z"),
        gen("b", "a", "y", "z", from_step="a"),
    )

    assert {"a": 2} == told(ended(state, "a"))
    assert {} == told(ended(state, "z"))
    assert {"a": 1} == told(ended(state, "x"))
    assert {"a": 0} == told(ended(state, "y"))


def test_the_nearest_of_those_who_continue_counts_until_it_has_forked() -> None:
    state = begun(
        gen("a"), gen("b", "a", from_step="a"), gen("c", "b"), gen("d", "c", from_step="a")
    )

    assert {"a": 0} == told(ended(state, "a"))
    assert {"a": 2} == told(advance(state, Opened("b")))
    assert {"a": 1} == told(ended(state, "b"))


def test_a_conversation_that_nobody_continues_is_not_expected() -> None:
    state = begun(gen("a"), gen("b", "a"))

    assert {} == told(ended(state, "a"))


def test_it_is_told_which_calls_and_questions_are_waited_for() -> None:
    steps = (
        gen("a"),
        call("look", "find", "a"),
        ask("check", "a"),
        gen("b", "look", "check", from_step="a"),
    )
    state = new_state(program(*steps, tools=(tool("find", "f:f"),), out="1"), {}, never)
    advance(state, Begin())

    (last,) = [one for one in ended(state, "a").commands if isinstance(one, ExpectUse)][-1:]
    assert ExpectUse("a", 1, ("check", "look")) == last
    returned = advance(state, Returned("look", "found"))
    assert ExpectUse("a", 1, ("check",)) in returned.commands


def test_who_waits_for_very_many_is_told_a_lower_bound() -> None:
    names = [f"s{idx}" for idx in range(100)]
    state = begun(gen("a"), *(gen(name) for name in names), gen("b", "a", *names, from_step="a"))

    assert {"a": 1} == told(ended(state, "a"))
