"""A run says of each request what the longest chain of steps behind it may still write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from programs import block, for_each, gen, loop, never, program, set_

from flowforge.language.answer_specs import SamplingSpec
from flowforge.runtime.commands import Begin, StartGeneration
from flowforge.runtime.core import advance, new_state
from flowforge.runtime.graph import graph_of
from flowforge.runtime.policy import RunPolicy

if TYPE_CHECKING:
    from flowforge.language.program import Step


def writes(num_tokens: int) -> SamplingSpec:
    return SamplingSpec(max_tokens=num_tokens)


def following(*steps: Step, policy: RunPolicy | None = None) -> dict[str, int]:
    """Of the generations that begin with the run."""
    state = new_state(program(*steps, out="1"), {}, never, policy=policy or RunPolicy())
    commands = advance(state, Begin()).commands
    begun = [one for one in commands if isinstance(one, StartGeneration)]
    return {one.path: one.request.num_following for one in begun}


def test_the_longest_chain_of_those_who_wait_counts() -> None:
    steps = (
        gen("a"),
        gen("b", "a", sampling=writes(30)),
        set_("c", "1", "b"),
        gen("d", "c", sampling=writes(5)),
        gen("e", "a", sampling=writes(9)),
        gen("z"),
    )

    assert {"a": 35, "z": 0} == following(*steps)
    assert {"a": 0, "z": 0} == following(*steps, policy=RunPolicy(tells_chains=False))


def test_what_is_behind_the_block_counts_for_what_is_inside() -> None:
    inner = block(gen("one", sampling=writes(3)), gen("two", "one", sampling=writes(4)))
    steps = (
        for_each("each", "[1]", inner),
        gen("end", "each", sampling=writes(50)),
    )

    assert {"each[0]/one": 54} == following(*steps)


def test_a_block_is_as_long_as_its_longest_chain_and_an_answer_without_bound_is_not_free() -> None:
    inner = block(gen("one", sampling=writes(3)), gen("two", "one", sampling=writes(4)))
    steps = (gen("a"), loop("again", inner, "a"), gen("end", "again"))

    assert {"a": 7 + 256} == following(*steps)


def test_a_long_chain_is_measured_without_depth() -> None:
    steps = [gen("s0"), *(gen(f"s{n}", f"s{n - 1}", sampling=writes(1)) for n in range(1, 5000))]

    assert 4999 == graph_of({one.name: one for one in steps}).nodes["s0"].num_following
