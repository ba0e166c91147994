"""The scheduler under every order of completion: same outputs, one end, nothing held."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from hypothesis import given
from hypothesis import strategies as st
from programs import Stage, answer_all, block, expr, for_each, gen, if_, loop, parallel, program

from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.errors import EngineError, FlowForgeError
from flowforge.language.join_policies import Best, Settle, Vote
from flowforge.language.program import Catch, Gen, Retry
from flowforge.runtime.commands import Begin, Broken, Cancelled, CancelRun, Succeeded
from flowforge.runtime.events import (
    RunCancelled,
    RunFailed,
    RunStarted,
    StepCancelled,
    StepFailed,
    StepFinished,
    StepRetried,
    StepSkipped,
    StepStarted,
)
from flowforge.runtime.run import start
from flowforge.runtime.seeds import derived_fraction
from flowforge.runtime.state import Status
from flowforge.runtime.stream import is_terminal
from flowforge.runtime.verbs.for_each import ForEachMemory
from flowforge.testing import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from programs import Work

    from flowforge.language.program import Block, JsonValue, Program, Step
    from flowforge.runtime.events import Fact
    from flowforge.runtime.state import StepState

RETRY = Retry(3, 0.5, 2.0, 60.0, "full")
JOINS = (None, Settle(), Vote(), Best(expr("value | json | len")))
"""Policies whose result depends on no order."""


class Maker:
    """Draws programs whose steps see, wait for and continue any of those before them."""

    def __init__(self, draw: st.DrawFn, *, with_failures: bool) -> None:
        self._draw = draw
        self._with_failures = with_failures

    def block(
        self, prefix: str, outer: tuple[str, ...], forkable: tuple[str, ...], depth: int
    ) -> tuple[Block, set[str]]:
        """A block, and the outer names that it uses."""
        steps: list[Step] = []
        own: list[str] = []
        used = set[str]()
        for idx in range(self._draw(st.integers(1, 4 if depth == 0 else 2))):
            name = f"{prefix}{idx}"
            visible = (*outer, *(one.name for one in steps))
            sources = (*forkable, *own)
            kinds = () if depth == 2 else ("for", "parallel", "loop", "if")
            kind = self._draw(st.sampled_from(["gen", "gen", *kinds]))
            if kind == "gen":
                one, uses = self._gen(name, visible, sources)
                own.append(name)
            else:
                one, uses = self._with_blocks(kind, name, visible, sources, depth)
            siblings = {other.name for other in steps}
            used |= uses - siblings
            steps.append(replace(one, needs=frozenset(uses & siblings)))
        return block(*steps), used

    def _gen(
        self, name: str, visible: tuple[str, ...], sources: tuple[str, ...]
    ) -> tuple[Step, set[str]]:
        draw = self._draw
        seen = draw(st.lists(st.sampled_from(visible), unique=True, max_size=3)) if visible else []
        source = draw(st.sampled_from([None, *sources]))
        user = f"I am {name}." + "".join(f' {word}=${{ {word} ?? "nothing" }}' for word in seen)
        num_samples = draw(st.sampled_from([1, 1, 1, 3]))
        one = gen(name, user=user, from_step=source, n=num_samples)
        return one, {*seen, *([source] if source else [])}

    def _with_blocks(
        self, kind: str, name: str, visible: tuple[str, ...], sources: tuple[str, ...], depth: int
    ) -> tuple[Step, set[str]]:
        draw = self._draw
        used = set[str]()

        def inner(mark: str, *names: str) -> Block:
            made, uses = self.block(f"{name}{mark}", (*visible, *names), sources, depth + 1)
            used.update(uses - set(names))
            return made

        match kind:
            case "for":
                items = draw(st.lists(st.sampled_from(["a", "b", "c"]), max_size=3))
                join = draw(st.sampled_from(JOINS)) if items else None
                limit = draw(st.sampled_from([None, 1, 2]))
                body = inner("b", "item")
                one = for_each(name, json.dumps(items), body, limit=limit, join=join)
            case "parallel":
                join = draw(st.sampled_from(JOINS))
                one = parallel(name, join=join, left=inner("l"), right=inner("r"))
            case "loop":
                body = inner("b", "carried")
                one = loop(
                    name,
                    body,
                    carried={"carried": '"none"'},
                    following={"carried": list(body.steps)[-1]},
                    max_rounds=draw(st.integers(1, 3)),
                )
            case _:
                otherwise = inner("e") if draw(st.booleans()) else None
                condition = draw(st.sampled_from(["true", "false"]))
                one = if_(name, condition, inner("t"), otherwise)
        return self._with_keys(one), used

    def _with_keys(self, one: Step) -> Step:
        draw = self._draw
        if not self._with_failures:
            return one
        return replace(
            one,
            retry=draw(st.sampled_from([None, RETRY])),
            catch=draw(st.sampled_from([None, Catch("error", (), expr("error.path"))])),
            finally_block=draw(st.sampled_from([None, None, block(gen(f"{one.name}f"))])),
        )


@st.composite
def programs(draw: st.DrawFn, *, with_failures: bool = False) -> Program:
    made, used = Maker(draw, with_failures=with_failures).block("s", (), (), 0)
    assert not used
    return program(*made.steps.values())


def failing_tool(seed: int) -> Callable[[Work], JsonValue | FlowForgeError]:
    """Fails a quarter of all works, chosen by their path alone."""

    def answer(work: Work) -> JsonValue | FlowForgeError:
        if derived_fraction(seed, work.path) < 0.25:
            return EngineError("EN900", "no more tokens")
        return answer_all(work)

    return answer


def any_order(data: st.DataObject) -> Callable[[int], int]:
    return lambda num: data.draw(st.integers(0, num - 1))


@given(programs(), st.data())
def test_any_order_of_completion_gives_the_same_result_and_the_same_steps(
    program: Program, data: st.DataObject
) -> None:
    reference = Stage(program)
    stage = Stage(program, choose=any_order(data))

    assert isinstance(reference.run(), Succeeded)
    assert reference.outcome == stage.run()

    told = {type(fact): fact for fact in stage.facts}
    assert RunStarted in told
    assert _finished(reference) == _finished(stage) or _has_votes(program)


@given(programs(with_failures=True), st.integers(0, 2**32), st.data())
def test_retries_and_catches_give_the_same_result_in_any_order(
    program: Program, seed: int, data: st.DataObject
) -> None:
    """Where nothing is left to fail: what failed was tried again, caught or settled."""
    reference = Stage(program, failing_tool(seed))
    stage = Stage(program, failing_tool(seed), choose=any_order(data))

    outcome = reference.run()

    if isinstance(outcome, Succeeded) and not _has_votes(program):
        # Which of two failures is found first is up to the order; that one is caught is not.
        assert isinstance(stage.run(), Succeeded)
    elif isinstance(outcome, Broken):
        assert isinstance(stage.run(), Broken)


@given(programs(with_failures=True), st.integers(0, 2**32), st.data())
def test_every_failure_names_its_path_and_every_start_has_one_end(
    program: Program, seed: int, data: st.DataObject
) -> None:
    stage = Stage(program, failing_tool(seed), choose=any_order(data))

    outcome = stage.run()

    _check_every_start_has_one_end(stage.facts)
    assert () == stage.state.open_paths
    if isinstance(outcome, Broken):
        started = {fact.path for fact in stage.facts if isinstance(fact, StepStarted)}
        failed = {fact.path for fact in stage.facts if isinstance(fact, StepFailed)}
        assert outcome.failures
        assert {failure.path for failure in outcome.failures} <= failed & started


@given(programs(with_failures=True), st.integers(0, 2**32), st.data())
def test_cancelling_at_any_moment_releases_everything_and_still_runs_what_is_final(
    program: Program, seed: int, data: st.DataObject
) -> None:
    stage = Stage(program, failing_tool(seed), choose=any_order(data))
    stage.tell(Begin())
    for _ in range(data.draw(st.integers(0, 12))):
        if stage.outcome is None:
            stage.step()
    if stage.outcome is not None:
        return

    is_failing = stage.state.top is not None and stage.state.top.is_stopping
    stage.tell(CancelRun())
    outcome = stage.finish()

    assert isinstance(outcome, Broken if is_failing else Cancelled)
    assert () == stage.state.open_paths
    _check_every_start_has_one_end(stage.facts)


@given(
    programs(with_failures=True),
    st.lists(st.booleans(), min_size=1, max_size=8),
    st.none() | st.integers(0, 60),
    st.sampled_from(["asyncio", "trio"]),
)
def test_a_stream_ends_with_its_one_terminal_event_whatever_fails_or_is_cancelled(
    program: Program, fails: list[bool], cancel_after: int | None, loop_name: str
) -> None:
    facts, backend = anyio.run(_run_in_the_shell, program, fails, cancel_after, backend=loop_name)

    ends = [fact for fact in facts if is_terminal(fact)]
    assert [facts[-1]] == ends
    assert 0 == backend.num_open
    _check_every_start_has_one_end(facts)
    if isinstance(facts[-1], RunFailed):
        failed = {fact.path for fact in facts if isinstance(fact, StepFailed)}
        assert facts[-1].failures
        assert {failure.path for failure in facts[-1].failures} <= failed
    assert cancel_after is not None or not isinstance(facts[-1], RunCancelled)


async def _run_in_the_shell(
    program: Program, fails: list[bool], cancel_after: int | None
) -> tuple[list[Fact], ScriptBackend]:
    """All that is told of a run whose generations fail in this order, again and again."""
    broken = ScriptedAnswer("two words", error=EngineError("EN900", "no more tokens"))
    answers = [broken if one else ScriptedAnswer("two words") for one in fails]
    backend = ScriptBackend({"*": answers * 50})
    facts: list[Fact] = []
    async with start(program, {}, backend, clock=VirtualClock(), seed=1) as run:

        async def cancel_in_time(num_steps: int) -> None:
            for _ in range(num_steps):
                await anyio.lowlevel.checkpoint()
            run.cancel()

        async with anyio.create_task_group() as tasks:
            if cancel_after is not None:
                tasks.start_soon(cancel_in_time, cancel_after)
            facts += [event.fact async for event in run.events()]
            tasks.cancel_scope.cancel()
    return facts, backend


@given(programs(), st.data())
def test_a_conversation_is_released_with_its_last_use(
    program: Program, data: st.DataObject
) -> None:
    stage = Stage(program, choose=any_order(data))
    stage.tell(Begin())

    while stage.outcome is None:
        stage.step()
        opening = {command.path for command in stage.waiting}
        steps = list(stage.state.steps.values())
        for one in steps:
            if one.status is Status.FINISHED and one.conversations:
                is_useful = any(_may_fork(user, one, opening) for user in steps)
                assert is_useful, f"{one.path} holds a conversation that nobody may use"


def _may_fork(user: StepState, source: StepState, opening: set[str]) -> bool:
    if not any(user.scope.find_step(name) is source for name in user.node.continues):
        return False
    if user.status is Status.WAITING or user.works & opening:
        return True
    memory = user.memory
    has_more = True
    if isinstance(memory, ForEachMemory):
        has_more = memory.num_opened < len(memory.items)
    return user.status is Status.RUNNING and has_more and not isinstance(user.node.step.verb, Gen)


def _finished(stage: Stage) -> Counter[str]:
    """What is recorded: every step instance that has a value, with that value."""
    return Counter(
        json.dumps([fact.path, fact.value])
        for fact in stage.facts
        if isinstance(fact, StepFinished)
    )


def _has_votes(program: Program) -> bool:
    """Whether a vote may cancel what another order would have let end."""
    return "Vote()" in repr(program)


def _check_every_start_has_one_end(facts: list[Fact]) -> None:
    ends = [
        fact.path
        for fact in facts
        if isinstance(fact, StepFinished | StepFailed | StepCancelled | StepRetried)
    ]
    starts = [fact.path for fact in facts if isinstance(fact, StepStarted)]
    cancelled = {fact.path for fact in facts if isinstance(fact, StepCancelled)}
    announced = {fact.next_path for fact in facts if isinstance(fact, StepRetried)}
    starts += sorted((announced & cancelled) - set(starts))
    outputs = [path for path in ends if path.startswith("outputs.")]
    assert sorted(starts) == sorted(set(starts))
    assert sorted(starts) == sorted(set(ends) - set(outputs))
    assert len(ends) == len(set(ends))
    skipped = {fact.path for fact in facts if isinstance(fact, StepSkipped)}
    assert not skipped & set(starts)
