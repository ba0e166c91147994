"""Branches foreseen while their list is written change nothing of what a run decides and tells."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from programs import Stage, block, for_each, gen, program

from flowforge.errors import EngineError, FlowForgeError
from flowforge.language.join_policies import All, First, Quorum, Settle
from flowforge.language.program import Retry
from flowforge.runtime.commands import Begin, CancelRun, PartClosed, StartGeneration
from flowforge.runtime.events import StepFinished
from flowforge.runtime.seeds import derived_fraction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from programs import Work

    from flowforge.language.program import JsonValue, Program, Step
    from flowforge.runtime.commands import Outcome

RETRY = Retry(3, 0.5, 2.0, 60.0, "full")
ITEMS = ("a", "b", "c", "d")


@st.composite
def programs(draw: st.DrawFn, *, is_ordered: bool = True) -> Program:
    """A list, and a `for` over it whose branches begin with generations of several kinds."""
    steps: list[Step] = [gen("intro")]
    listing = gen("list", json_schema={"type": "array"})
    if draw(st.booleans()):
        listing = replace(listing, retry=RETRY)
    steps.append(listing)
    source = draw(st.sampled_from([None, "intro", "list"]))
    first = gen("one", user="about ${ item }", from_step=source, n=draw(st.sampled_from([1, 2])))
    inner = [first]
    if draw(st.booleans()):
        inner.append(gen("two", "one", user="and ${ one }", from_step="one"))
    if draw(st.booleans()):
        inner.append(gen("three", user="again ${ item } ${ intro }"))
    joins = [All(), Settle()] if is_ordered else [All(), Settle(), First(), Quorum(2)]
    each = for_each(
        "each",
        "list",
        block(*inner),
        *{"list", "intro"},
        limit=draw(st.sampled_from([None, 1, 2])),
        join=draw(st.sampled_from(joins)),
    )
    steps.append(replace(each, retry=draw(st.sampled_from([None, RETRY]))))
    return program(*steps)


def parsed(text: str, schema: Mapping[str, JsonValue]) -> JsonValue:
    del schema
    value: JsonValue = json.loads(text)
    return value


def items_of(path: str, seed: int) -> list[JsonValue]:
    """What the list is in a try: tries differ, in their length too."""
    shift = int(10 * derived_fraction(seed, path))
    return [f"{path} {ITEMS[(idx + shift) % 4]}" for idx in range(shift % 5)]


class Foreseeing(Stage):
    """A stage that tells of elements of the list while it is written, also of wrong ones."""

    lies = False

    def step(self) -> None:
        lists = [one for one in self.running if one.path.partition("#")[0] == "list"]
        if lists and self.choose(3):
            items = items_of(lists[0].path, self.seed)
            idx = self.choose(len(items) + 1)
            value = "none of them" if self.lies and self.choose(2) else [*items, "more"][idx]
            if idx < len(items) or self.lies:
                self.tell(PartClosed(lists[0].path, idx, value))
                return
        super().step()


def stage_of(kind: type[Stage], program: Program, seed: int, num_failing: float) -> Stage:
    def answer(work: Work) -> JsonValue | FlowForgeError:
        if derived_fraction(seed, f"{work.path} fails") < num_failing:
            return EngineError("EN900", "no more tokens")
        if work.path.partition("#")[0] == "list":
            return json.dumps(items_of(work.path, seed))
        assert isinstance(work, StartGeneration)
        return f"{work.path} answers {work.said!r}"

    stage = kind(program, answer, seed=seed)
    stage.state.validate = parsed
    return stage


def told(stage: Stage) -> list[str]:
    finished = [one for one in stage.facts if isinstance(one, StepFinished)]
    return sorted(json.dumps([one.path, one.value]) for one in finished)


@given(programs(), st.integers(0, 2**32), st.booleans(), st.data())
def test_foreseen_branches_change_no_result_and_nothing_that_is_told(
    program: Program, seed: int, lies: bool, data: st.DataObject
) -> None:
    reference = stage_of(Stage, program, seed, 0.0)
    stage = stage_of(Foreseeing, program, seed, 0.0)
    stage.choose = lambda num: data.draw(st.integers(0, num - 1))
    assert isinstance(stage, Foreseeing)
    stage.lies = lies

    assert reference.run() == stage.run()
    assert told(reference) == told(stage)


@given(programs(is_ordered=False), st.integers(0, 2**32), st.none() | st.integers(0, 12), st.data())
def test_whatever_fails_or_is_cancelled_nothing_foreseen_is_left(
    program: Program, seed: int, cancel_after: int | None, data: st.DataObject
) -> None:
    stage = stage_of(Foreseeing, program, seed, 0.25)
    stage.choose = lambda num: data.draw(st.integers(0, num - 1))

    stage.tell(Begin())
    for _ in range(cancel_after or 0):
        if stage.outcome is None:
            stage.step()
    if cancel_after is not None and stage.outcome is None:
        stage.tell(CancelRun())
    outcome: Outcome = stage.finish()

    assert outcome is stage.outcome
    assert () == stage.state.open_paths
    assert not stage.foreseen


def test_a_branch_takes_what_was_foreseen_for_its_element_up_to_the_limit() -> None:
    each = for_each("each", "list", block(gen("one", user="${ item }")), "list", limit=2)
    stage = stage_of(
        Stage, program(gen("list", json_schema={"type": "array"}), each), seed=4, num_failing=0
    )
    items = items_of("list", 4)
    assert len(items) > 2
    stage.tell(Begin())
    stage.step()

    for idx, item in enumerate(items):
        stage.tell(PartClosed("list", idx, item))
    assert ["each[0]/one", "each[1]/one"] == sorted(stage.foreseen)
    stage.finish()

    assert 2 == stage.num_taken
