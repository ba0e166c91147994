"""From a program and its inputs to a plan: the steps are gone through without being run.

A plan supposes that no step fails: what `retry` and `catch` would do then is in the most, and not
in the least. A branch that may not be taken is planned too; what it leaves behind is possible and
not certain.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

from flowforge.errors import WorkflowError
from flowforge.language.inputs import resolve_inputs
from flowforge.language.program import (
    Ask,
    Block,
    Call,
    ForEach,
    Gen,
    If,
    Loop,
    Parallel,
    Required,
    Run,
    Set,
    Switch,
)
from flowforge.language.token_meter import EncodingMeter
from flowforge.language.traversal import blocks_of
from flowforge.planning.branches import (
    plan_for_each,
    plan_if,
    plan_loop,
    plan_parallel,
    plan_switch,
)
from flowforge.planning.costs import Cost, by_order
from flowforge.planning.evaluation import Evaluator
from flowforge.planning.generations import GenerationPlanner, Outcome, PlannedModel
from flowforge.planning.plan import Plan
from flowforge.planning.prefixes import PrefixBook
from flowforge.planning.quantity import UNBOUNDED, exactly, one_of
from flowforge.planning.scope import Conversation, PlanScope
from flowforge.planning.values import (
    PlanValue,
    Unknown,
    any_of,
    combined_key,
    is_known,
    plan_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from flowforge.language.expressions import Expression
    from flowforge.language.program import JsonValue, Program, Step, Verb
    from flowforge.planning.plan import PlannedGeneration
    from flowforge.planning.prompts import Tokenizing

MAX_GENERATIONS = 10_000
_TOO_LARGE = "WF527"


def plan_program(
    program: Program,
    inputs: Mapping[str, JsonValue],
    tokens: Tokenizing,
    *,
    others: Mapping[str, Tokenizing] | None = None,
    page_size: int = 16,
    num_pages: int | None = None,
) -> Plan:
    """What a run with these inputs will cost; inputs complete, as `resolve_inputs` gives them.

    tokens: of the run's own model. others: of every model that a step names (`models_of`); names of
    one model have one object. How many tokens a text of one model has for another is not known
    before the text is there.
    Raises WorkflowError where a run would for certain, and WF527 for what is too large to plan.
    """
    models: dict[str | None, Tokenizing] = {None: tokens}
    models.update(others or {})
    planner = Planner(models, page_size)
    cost = planner.plan(program, inputs)
    return Plan(
        program=program.name,
        generations=tuple(planner.writer.generations),
        read_again=tuple(planner.writer.read_again),
        problems=(*dict.fromkeys(planner.problems), *_too_long(planner.writer.generations)),
        cost=cost,
        context_len=tokens.context_len,
        page_size=page_size,
        num_pages=num_pages,
    )


def _too_long(generations: Sequence[PlannedGeneration]) -> Iterator[str]:
    """What no run can compute: told once for each step, whatever its branch or round."""
    steps_told: set[str] = set()
    for one in generations:
        step = re.sub(r"\[\d+\]|#\d+", "", one.path)
        if one.fit == "does not fit" and step not in steps_told:
            steps_told.add(step)
            yield (
                f"{one.path}: prompt and answer may have {one.sequence.least:,} tokens or more, "
                f"and the context has {one.context_len:,}"
            )


class Planner:
    """Goes through steps in an order in which they can run. models: None is the run's own."""

    def __init__(self, models: Mapping[str | None, Tokenizing], page_size: int) -> None:
        self.evaluator = Evaluator(EncodingMeter(models[None].encode))
        self.count = self.evaluator.count
        # One model under two names computes what both ask for once.
        each = {
            id(tokens): PlannedModel(tokens, PrefixBook(tokens.recomputation))
            for tokens in models.values()
        }
        planned = {name: each[id(tokens)] for name, tokens in models.items()}
        self._books = [model.book for model in each.values()]
        self.writer = GenerationPlanner(planned, self.evaluator, page_size)
        self.problems: list[str] = []
        self._num_maybe = 0

    def plan(self, program: Program, inputs: Mapping[str, JsonValue]) -> Cost:
        """All of a program."""
        return self._program(program, plan_value(dict(inputs)), "").cost

    def _program(self, program: Program, inputs: PlanValue, prefix: str) -> Outcome:
        scope = PlanScope().inner({"inputs": inputs})
        cost = self.steps(program.steps, scope, prefix)
        outputs = {
            name: self.evaluator.value_of(output.value, scope.values)
            for name, output in program.outputs.items()
        }
        return Outcome(cost, outputs)

    def steps(self, steps: Mapping[str, Step], scope: PlanScope, prefix: str) -> Cost:
        """The steps of one block; their values and conversations come into `scope`."""
        needs = {name: step.needs & steps.keys() for name, step in steps.items()}
        costs: dict[str, Cost] = {}
        order = _in_order(needs)
        for name in order:
            outcome = self._step(steps[name], f"{prefix}{name}", scope)
            costs[name] = outcome.cost
            scope.values[name] = outcome.value
            scope.conversations[name] = outcome.conversation
        return by_order(costs, needs, _holders(steps, order))

    def _step(self, step: Step, path: str, scope: PlanScope) -> Outcome:
        if len(self.writer.generations) > MAX_GENERATIONS:
            raise WorkflowError(
                _TOO_LARGE,
                f"the plan has more than {MAX_GENERATIONS:,} generations",
                location=step.location,
                help="bound the lists and loops around this step",
            )
        wanted = self._is_wanted(step, scope)
        if wanted is False:
            return Outcome(Cost(), None)
        if wanted is True:
            return self._whole_step(step, path, scope)
        outcome = self.perhaps(path, partial(self._whole_step, step, path, scope))
        value = any_of(combined_key("when", [path]), [outcome.value, None], self.count)
        return Outcome(outcome.cost.or_nothing(), value, _doubtful(outcome))

    def _is_wanted(self, step: Step, scope: PlanScope) -> bool | None:
        """Whether the step will run; None when only the run can say."""
        wanted: bool | None = True
        if isinstance(step.verb, Gen) and step.verb.from_step is not None:
            source = scope.conversations[step.verb.from_step]
            if source is None:
                return False
            wanted = True if source.is_certain else None
        if step.when is None:
            return wanted
        holds = self.truth(step.when, scope)
        return False if holds is False else (wanted if holds else None)

    def _whole_step(self, step: Step, path: str, scope: PlanScope) -> Outcome:
        outcome = self._first_try(step, path, scope)
        for attempt in range(2, 1 + (1 if step.retry is None else step.retry.attempts)):
            again = f"{path}#{attempt}"
            repeated = self.perhaps(again, partial(self._verb, step.verb, again, scope))
            cost = outcome.cost.then(repeated.cost.or_nothing())
            outcome = Outcome(cost, outcome.value, outcome.conversation)
        if step.catch is not None:
            outcome = self._caught(step, path, scope, outcome)
        if step.finally_block is not None:
            cost = self.steps(step.finally_block.steps, scope.inner({}), f"{path}/finally/")
            outcome = Outcome(outcome.cost.then(cost), outcome.value, outcome.conversation)
        return outcome

    def _first_try(self, step: Step, path: str, scope: PlanScope) -> Outcome:
        if step.catch is None:
            return self._verb(step.verb, path, scope)
        return self.allowed_to_fail(path, partial(self._verb, step.verb, path, scope))

    def _caught(self, step: Step, path: str, scope: PlanScope, outcome: Outcome) -> Outcome:
        assert step.catch is not None
        body = step.catch.body
        error: dict[str, PlanValue] = {
            name: Unknown(f"{path}:error.{name}") for name in ("code", "message", "path", "help")
        }
        variables: dict[str, PlanValue] = {step.catch.variable: error}
        if isinstance(body, Block):
            run_body = partial(self.block, body, f"{path}/catch", scope, variables)
            caught = self.perhaps(f"{path}/catch", run_body)
        else:
            value = self.evaluator.value_of(body, scope.inner(variables).values)
            caught = Outcome(Cost(), value)
        key = combined_key("catch", [path])
        return Outcome(
            outcome.cost.then(caught.cost.or_nothing()),
            any_of(key, [outcome.value, caught.value], self.count),
            _doubtful(outcome),
        )

    def _verb(self, verb: Verb, path: str, scope: PlanScope) -> Outcome:
        match verb:
            case Gen():
                return self.writer.plan(verb, path, scope, is_certain=self._num_maybe == 0)
            case Call():
                return Outcome(Cost(), Unknown(path))
            case ForEach():
                return plan_for_each(self, verb, path, scope)
            case Loop():
                return plan_loop(self, verb, path, scope)
            case If():
                return plan_if(self, verb, path, scope)
            case Switch():
                return plan_switch(self, verb, path, scope)
            case Parallel():
                return plan_parallel(self, verb, path, scope)
            case Run():
                return self._run(verb, path, scope)
            case Ask(choices=choices):
                listed = [exactly(self.count(choice)) for choice in choices]
                tokens = one_of(listed) if listed else UNBOUNDED
                return Outcome(Cost(), Unknown(path, tokens, exactly(0)))
            case Set(value=value):
                return Outcome(Cost(), self.evaluator.value_of(value, scope.values))
            case _:
                assert_never(verb)

    def block(
        self, block: Block, path: str, scope: PlanScope, variables: Mapping[str, PlanValue]
    ) -> Outcome:
        """A block, with what it sees beside the names of `scope`."""
        inner = scope.inner(variables)
        cost = self.steps(block.steps, inner, f"{path}/")
        return Outcome(cost, self.evaluator.value_of(block.result, inner.values))

    def _run(self, verb: Run, path: str, scope: PlanScope) -> Outcome:
        given = {
            name: self.evaluator.value_of(value, scope.values)
            for name, value in verb.arguments.items()
        }
        known = {name: value for name, value in given.items() if is_known(value)}
        if len(known) == len(given):
            inputs = plan_value(resolve_inputs(verb.program, known))
        else:
            defaults = {
                name: plan_value(input_.default)
                for name, input_ in verb.program.inputs.items()
                if not isinstance(input_.default, Required)
            }
            inputs = {**defaults, **given}
        return self._program(verb.program, inputs, f"{path}/")

    def truth(
        self, condition: Expression | None, scope: PlanScope, *, default: bool = True
    ) -> bool | None:
        """Whether a condition holds; None when only the run can say."""
        if condition is None:
            return default
        value = self.evaluator.value_of(condition, scope.values)
        return value if isinstance(value, bool) else None

    @contextmanager
    def maybe(self) -> Generator[None]:
        """What is planned inside may not happen."""
        marks = [book.mark() for book in self._books]
        self._num_maybe += 1
        try:
            yield
        finally:
            self._num_maybe -= 1
            for book, mark in zip(self._books, marks, strict=True):
                book.forget_since(mark)

    def perhaps(self, path: str, plan: Callable[[], Outcome]) -> Outcome:
        """What may not happen may fail, too, without the run failing for certain."""
        with self.maybe():
            return self.allowed_to_fail(path, plan)

    def allowed_to_fail(self, path: str, plan: Callable[[], Outcome]) -> Outcome:
        """What the run outlives the failure of: how far it comes until then is not certain."""
        marks = [book.mark() for book in self._books]
        num_planned = len(self.writer.generations)
        try:
            return plan()
        except WorkflowError as error:
            if error.code == _TOO_LARGE:
                raise
            for book, mark in zip(self._books, marks, strict=True):
                book.forget_since(mark)
            self.problems.append(f"{path}: {error.message}")
            return Outcome(self.writer.doubt_since(num_planned), Unknown(path))


def _in_order(needs: Mapping[str, frozenset[str]]) -> list[str]:
    order: dict[str, None] = {}
    while len(order) < len(needs):
        left = {name: needed for name, needed in needs.items() if name not in order}
        ready = [name for name, needed in left.items() if needed <= order.keys()]
        assert ready, "the checker leaves no cycles"
        order.update(dict.fromkeys(ready))
    return list(order)


def _holders(steps: Mapping[str, Step], order: Sequence[str]) -> dict[str, frozenset[str]]:
    """For each step those that continue its conversation, or that of one who does."""
    continued = {name: _continued_by(step) for name, step in steps.items()}
    holders: dict[str, frozenset[str]] = {}
    for name in reversed(order):
        direct = frozenset(other for other, names in continued.items() if name in names)
        holders[name] = direct.union(*(holders[other] for other in direct))
    return holders


def _continued_by(step: Step) -> frozenset[str]:
    """The steps that a step, or one inside it, continues."""
    own = frozenset[str]()
    if isinstance(step.verb, Gen) and step.verb.from_step is not None:
        own = frozenset({step.verb.from_step})
    inside = (inner for _, block in blocks_of(step) for inner in block.steps.values())
    return own.union(*map(_continued_by, inside))


def _doubtful(outcome: Outcome) -> Conversation | None:
    conversation = outcome.conversation
    return None if conversation is None else replace(conversation, is_certain=False)
