"""A run says what the prompts of coming steps begin with, and in how many steps they are asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from programs import never

from flowforge.backends.protocol import GenerationDone, Usage
from flowforge.language.loader import load_text, require_program
from flowforge.runtime.commands import Answered, Begin, CancelRun, ExpectPrompt, Returned
from flowforge.runtime.core import advance, new_state
from flowforge.runtime.policy import RunPolicy

if TYPE_CHECKING:
    from flowforge.runtime.commands import Decision, Report
    from flowforge.runtime.state import RunState

HEAD = """
flowforge: 1
name: turns
inputs: { topic: string }
tools: { find: { python: "f:f", effect: read } }
steps:
"""
CHAIN = """
  a: { user: begin, gen: { max_tokens: 4 } }
  b: { user: "about ${ inputs.topic }: ${ a }", gen: { max_tokens: 4 } }
  c: { system: "you judge", user: "only ${ b }", gen: { max_tokens: 4 } }
  d: { from: a, user: "more ${ c }", gen: { max_tokens: 4 } }
"""


def new(steps: str, policy: RunPolicy | None = None) -> RunState:
    program = require_program(load_text(HEAD + steps))
    return new_state(program, {"topic": "x"}, never, policy=policy or RunPolicy())


def answered(path: str) -> Report:
    return Answered(path, GenerationDone("ok", "stop", Usage()))


def told(decision: Decision) -> list[ExpectPrompt]:
    return [one for one in decision.commands if isinstance(one, ExpectPrompt)]


def test_prompts_are_told_as_far_as_they_are_known() -> None:
    state = new(CHAIN)

    assert [
        ExpectPrompt("b", None, "about x: ", 1),
        ExpectPrompt("c", "you judge", "only ", 2),
    ] == told(advance(state, Begin()))
    # What "b" says is known now, and it has begun itself.
    assert [ExpectPrompt("c", "you judge", "only ", 1)] == told(advance(state, answered("a")))


def test_far_prompts_are_told_again_when_they_are_half_as_far() -> None:
    names = [f"s{idx}" for idx in range(41)]
    after = ["", *(f", after: {name}" for name in names[:-1])]
    state = new(
        "".join(
            f'  {name}: {{ user: "role {name}", gen: {{ max_tokens: 4 }}{behind} }}\n'
            for name, behind in zip(names, after, strict=True)
        )
    )

    advance(state, Begin())
    distances = [
        one.num_steps
        for name in names[:-1]
        for one in told(advance(state, answered(name)))
        if one.path == "s40"
    ]

    assert [20, 10, 8, 7, 6, 5, 4, 3, 2, 1] == distances


def test_a_prompt_behind_a_tool_says_what_it_waits_for() -> None:
    state = new("""
  a: { user: begin, gen: { max_tokens: 4 } }
  look: { call: find, after: a }
  b: { user: "role ${ look }", gen: { max_tokens: 4 } }
""")
    advance(state, Begin())

    assert [ExpectPrompt("b", None, "role ", 1, ("look",))] == told(advance(state, answered("a")))
    assert [] == told(advance(state, Returned("look", "found")))


def test_nothing_is_told_without_the_policy_or_of_a_run_that_is_cancelled() -> None:
    silent = new(CHAIN, RunPolicy(expects_prompts=False))
    state = new(CHAIN)

    assert [] == told(advance(silent, Begin()))
    assert len(told(advance(state, Begin()))) == 2
    advance(state, CancelRun())
    assert [] == told(advance(state, answered("a")))
