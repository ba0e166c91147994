"""The scheduler under every order of completion: same outputs, one end, nothing held."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from flowforge.backends.protocol import GenerationDone, Usage
from flowforge.errors import EngineError, Location
from flowforge.language.expression_nodes import Constant, ListOf, Name
from flowforge.language.expressions import Expression
from flowforge.language.program import Block, ForEach, Gen, Output, Program, SamplingSpec, Step
from flowforge.language.templates import Template
from flowforge.language.types import AnyType
from flowforge.runtime.commands import (
    Answered,
    Begin,
    Broken,
    Cancelled,
    CancelRun,
    Failed,
    Opened,
    ReleaseConversation,
    StartGeneration,
    StopGeneration,
    Stopped,
    Succeeded,
)
from flowforge.runtime.core import advance, new_state
from flowforge.runtime.events import (
    RunStarted,
    StepCancelled,
    StepFailed,
    StepFinished,
    StepStarted,
)
from flowforge.runtime.state import Status
from flowforge.runtime.verbs.for_each import ForEachMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from flowforge.language.expression_nodes import Node
    from flowforge.language.program import JsonValue
    from flowforge.runtime.commands import Outcome, Report
    from flowforge.runtime.events import Fact
    from flowforge.runtime.state import RunState, StepState

HERE = Location("test.yaml", 1, 1)


def expression(node: Node, *names: str) -> Expression:
    return Expression("…", node, AnyType(), frozenset(names), HERE)


def name(word: str) -> Expression:
    return expression(Name(0, 0, word), word)


def gen(step_name: str, sees: Iterable[str], from_step: str | None) -> Step:
    parts = [part for word in sees for part in (f" {word}=", name(word))]
    user = Template((f"I am {step_name}.", *parts), HERE)
    verb = Gen(from_step, None, user, SamplingSpec(), None)
    return Step(step_name, verb, frozenset(), AnyType(), HERE)


def needing(step: Step, needs: Iterable[str]) -> Step:
    return Step(step.name, step.verb, frozenset(needs), step.type, step.location)


@st.composite
def blocks(
    draw: st.DrawFn, prefix: str, outer: tuple[str, ...], forkable: tuple[str, ...], depth: int
) -> dict[str, Step]:
    """Steps that see, wait for and continue any of those before them, here or further out."""
    steps: dict[str, Step] = {}
    own_forkable: list[str] = []
    for idx in range(draw(st.integers(1, 4 if depth == 0 else 2))):
        step_name = f"{prefix}{idx}"
        seen = draw(
            st.lists(st.sampled_from([*outer, *steps]), unique=True, max_size=3)
            if outer or steps
            else st.just([])
        )
        sources = [*forkable, *own_forkable]
        source = draw(st.sampled_from([None, *sources]))
        if depth < 2 and draw(st.integers(0, 2)) == 0:
            num_items = draw(st.integers(0, 3))
            items = ListOf(
                0, 0, tuple(Constant(0, 0, f"{step_name}i{i}") for i in range(num_items))
            )
            variable = f"{step_name}v"
            body = draw(
                blocks(f"{step_name}b", (*outer, *steps, variable), tuple(sources), depth + 1)
            )
            verb = ForEach(
                variable,
                expression(items),
                draw(st.sampled_from([None, 1, 2])),
                Block(body, name(list(body)[-1])),
            )
            used = set[str]().union(*(_used(step) for step in body.values()))
            steps[step_name] = Step(
                step_name, verb, frozenset(used & steps.keys()), AnyType(), HERE
            )
        else:
            needs = {word for word in [*seen, source] if word in steps}
            steps[step_name] = needing(gen(step_name, seen, source), (n for n in needs if n))
            own_forkable.append(step_name)
    return steps


def _used(step: Step) -> set[str]:
    """Every name that a step reads or continues, whatever its depth."""
    match step.verb:
        case Gen():
            user = step.verb.user
            names = set(user.names) if user else set[str]()
            return names | ({step.verb.from_step} if step.verb.from_step else set[str]())
        case ForEach():
            return set[str]().union(*(_used(inner) for inner in step.verb.body.steps.values()))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    steps = draw(blocks("s", (), (), 0))
    outputs = {word: Output(word, name(word), HERE) for word in steps}
    return Program("any", "test.yaml", {}, steps, outputs)


def never(text: str, schema: Mapping[str, JsonValue]) -> JsonValue:
    raise AssertionError(f"no step has a schema, yet {text!r} was validated under {schema}")


@dataclass
class Stage:
    """Plays the shell: checks every command against what a backend would allow."""

    state: RunState
    answer: Callable[[StartGeneration], GenerationDone | EngineError]
    facts: list[Fact] = field(default_factory=list["Fact"])
    waiting: list[StartGeneration] = field(default_factory=list["StartGeneration"])
    opened: list[StartGeneration] = field(default_factory=list["StartGeneration"])
    stopping: set[str] = field(default_factory=set[str])
    history: dict[str, str] = field(default_factory=dict[str, str])
    closed: set[str] = field(default_factory=set[str])
    outcome: Outcome | None = None

    def tell(self, report: Report) -> None:
        assert self.outcome is None, "the core decided after the end"
        decision = advance(self.state, report)
        self.facts += decision.facts
        for command in decision.commands:
            match command:
                case StartGeneration():
                    self.waiting.append(command)
                case StopGeneration(path):
                    assert path in {c.path for c in [*self.waiting, *self.opened]}
                    self.stopping.add(path)
                case ReleaseConversation(path):
                    assert path not in self.closed, f"{path} was released twice"
                    self.closed.add(path)
        self.outcome = decision.outcome

    def step(self, choose: Callable[[int], int]) -> None:
        """One thing happens: a conversation opens, or a generation ends."""
        idx = choose(len(self.waiting) + len(self.opened))
        if idx < len(self.waiting):
            self._open(self.waiting.pop(idx))
        else:
            self._end(self.opened.pop(idx - len(self.waiting)))

    def _open(self, command: StartGeneration) -> None:
        if command.path in self.stopping:
            self.tell(Stopped(command.path))
            return
        before = ""
        if command.continues is not None:
            assert command.continues not in self.closed, f"{command.path} forks what was released"
            before = self.history[command.continues]
        self.history[command.path] = f"{before}{command.user}"
        self.opened.append(command)
        self.tell(Opened(command.path))

    def _end(self, command: StartGeneration) -> None:
        done = self.answer(command)
        if command.path in self.stopping:
            self.tell(Stopped(command.path))
        elif isinstance(done, EngineError):
            self.tell(Failed(command.path, done))
        else:
            self.history[command.path] += f"<{done.text}>"
            self.tell(Answered(command.path, done))

    def is_over(self) -> bool:
        return self.outcome is not None

    def run(self, choose: Callable[[int], int]) -> None:
        self.tell(Begin())
        while self.outcome is None:
            assert self.waiting or self.opened, "nothing is in flight and the run has no end"
            self.step(choose)


def answer_all(command: StartGeneration) -> GenerationDone:
    return GenerationDone(f"{command.path} read: {command.user}", "stop", Usage())


def first_in(num_choices: int) -> int:
    return 0 * num_choices


@given(programs(), st.data())
def test_any_order_of_completion_gives_the_same_outputs(
    program: Program, data: st.DataObject
) -> None:
    reference = Stage(new_state(program, {}, never), answer_all)
    reference.run(first_in)
    stage = Stage(new_state(program, {}, never), answer_all)

    stage.run(lambda num: data.draw(st.integers(0, num - 1)))

    assert isinstance(reference.outcome, Succeeded)
    assert reference.outcome == stage.outcome
    assert reference.history == stage.history


@given(programs(), st.data())
def test_a_finished_run_holds_no_conversation_and_has_told_every_step_once(
    program: Program, data: st.DataObject
) -> None:
    stage = Stage(new_state(program, {}, never), answer_all)

    stage.run(lambda num: data.draw(st.integers(0, num - 1)))

    assert set(stage.history) == stage.closed
    assert () == stage.state.open_paths
    started = [fact.path for fact in stage.facts if isinstance(fact, StepStarted)]
    finished = [fact.path for fact in stage.facts if isinstance(fact, StepFinished)]
    assert len(set(started)) == len(started)
    assert sorted(started) == sorted(finished)
    assert isinstance(stage.facts[0], RunStarted)


@given(programs(), st.data())
def test_a_conversation_is_released_with_its_last_use(
    program: Program, data: st.DataObject
) -> None:
    stage = Stage(new_state(program, {}, never), answer_all)
    stage.tell(Begin())

    while not stage.is_over():
        stage.step(lambda num: data.draw(st.integers(0, num - 1)))
        held = set(stage.state.open_paths) - stage.state.in_flight
        useful = {
            step.scope.find_step(word).path
            for step in stage.state.steps.values()
            if _may_still_fork(step, {command.path for command in stage.waiting})
            for word in step.node.continues
        }
        assert held <= useful


@given(programs(), st.data())
def test_failures_cancel_the_rest_and_are_all_reported(
    program: Program, data: st.DataObject
) -> None:
    failing = set[str]()

    def answer(command: StartGeneration) -> GenerationDone | EngineError:
        if data.draw(st.integers(0, 3)) == 0:
            failing.add(command.path)
            return EngineError("EN999", "no more tokens")
        return answer_all(command)

    stage = Stage(new_state(program, {}, never), answer)

    stage.run(lambda num: data.draw(st.integers(0, num - 1)))

    assert set(stage.history) <= stage.closed
    assert () == stage.state.open_paths
    if isinstance(stage.outcome, Broken):
        failed = [fact.path for fact in stage.facts if isinstance(fact, StepFailed)]
        assert failed == [failure.path for failure in stage.outcome.failures]
        assert set(failed) <= failing
        assert len(failed) >= 1
    else:
        assert isinstance(stage.outcome, Succeeded)
    _check_every_start_has_one_end(stage.facts)


@given(programs(), st.data())
def test_cancelling_at_any_moment_releases_everything(
    program: Program, data: st.DataObject
) -> None:
    stage = Stage(new_state(program, {}, never), answer_all)
    stage.tell(Begin())
    num_before = data.draw(st.integers(0, 6))
    while num_before > 0 and not stage.is_over():
        stage.step(lambda num: data.draw(st.integers(0, num - 1)))
        num_before -= 1
    if stage.is_over():
        return

    stage.tell(CancelRun())
    while not stage.is_over():
        stage.step(lambda num: data.draw(st.integers(0, num - 1)))

    assert isinstance(stage.outcome, Cancelled)
    assert set(stage.history) <= stage.closed
    assert () == stage.state.open_paths
    _check_every_start_has_one_end(stage.facts)


def _may_still_fork(step: StepState, opening: set[str]) -> bool:
    if step.status is Status.WAITING or step.path in opening:
        return True
    memory = step.memory
    has_more = isinstance(memory, ForEachMemory) and memory.num_opened < len(memory.items)
    return step.status is Status.RUNNING and has_more


def _check_every_start_has_one_end(facts: list[Fact]) -> None:
    ends = [f.path for f in facts if isinstance(f, StepFinished | StepFailed | StepCancelled)]
    starts = [fact.path for fact in facts if isinstance(fact, StepStarted)]
    assert sorted(ends) == sorted(starts), json.dumps({"starts": starts, "ends": ends})
