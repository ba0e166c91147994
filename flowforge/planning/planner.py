"""From a program and its inputs to a plan: the steps are gone through without being run.

A plan supposes that no step fails: what `retry` and `catch` would do then is in the most, and not
in the least. A branch that may not be taken is planned too; what it leaves behind is possible and
not certain.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

from flowforge.errors import WorkflowError
from flowforge.language.inputs import resolve_inputs
from flowforge.language.json_values import json_equal, json_text
from flowforge.language.program import (
    All,
    Ask,
    Best,
    Block,
    Call,
    First,
    ForEach,
    Gen,
    If,
    Loop,
    Parallel,
    Quorum,
    Required,
    Run,
    Set,
    Settle,
    Switch,
    Vote,
)
from flowforge.language.traversal import blocks_of
from flowforge.planning.costs import Cost, beside, by_order, one_cost_of
from flowforge.planning.evaluation import Evaluator
from flowforge.planning.generations import GenerationPlanner, Outcome
from flowforge.planning.plan import Plan
from flowforge.planning.prefixes import PrefixBook
from flowforge.planning.quantity import UNBOUNDED, Quantity, exactly, one_of, total
from flowforge.planning.scope import Conversation, PlanScope
from flowforge.planning.values import (
    PlanValue,
    Unknown,
    any_of,
    combined_key,
    is_known,
    key_of,
    origins_of,
    plan_value,
    tokens_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from flowforge.language.expressions import Expression
    from flowforge.language.program import Join, JsonValue, Program, Step, Verb
    from flowforge.planning.prompts import Tokenizing

MAX_GENERATIONS = 10_000
_MOST_OPEN_ITEMS = 200
_TOO_LARGE = "WF527"
_AROUND_ITEM = exactly(4)  # quotes, comma and space, if the list is written as JSON


def plan_program(
    program: Program,
    inputs: Mapping[str, JsonValue],
    tokens: Tokenizing,
    *,
    page_size: int = 16,
    num_pages: int | None = None,
) -> Plan:
    """What a run with these inputs will cost; inputs complete, as `resolve_inputs` gives them.

    Raises WorkflowError where a run would for certain, and WF527 for what is too large to plan.
    """
    planner = _Planner(tokens, page_size)
    cost = planner.plan(program, inputs)
    return Plan(
        program=program.name,
        generations=tuple(planner.writer.generations),
        read_again=tuple(planner.writer.read_again),
        problems=tuple(dict.fromkeys(planner.problems)),
        cost=cost,
        context_len=tokens.context_len,
        page_size=page_size,
        num_pages=num_pages,
    )


class _Planner:
    """Goes through steps in an order in which they can run."""

    def __init__(self, tokens: Tokenizing, page_size: int) -> None:

        def count(text: str) -> int:
            return len(tokens.encode(text))

        self._count = count
        self._evaluator = Evaluator(self._count)
        self._book = PrefixBook(tokens.recomputation)
        self.writer = GenerationPlanner(tokens, self._evaluator, self._book, page_size)
        self.problems: list[str] = []
        self._num_maybe = 0

    def plan(self, program: Program, inputs: Mapping[str, JsonValue]) -> Cost:
        return self._program(program, plan_value(dict(inputs)), "").cost

    def _program(self, program: Program, inputs: PlanValue, prefix: str) -> Outcome:
        scope = PlanScope().inner({"inputs": inputs})
        cost = self._steps(program.steps, scope, prefix)
        outputs = {
            name: self._evaluator.value_of(output.value, scope.values)
            for name, output in program.outputs.items()
        }
        return Outcome(cost, outputs)

    def _steps(self, steps: Mapping[str, Step], scope: PlanScope, prefix: str) -> Cost:
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
        outcome = self._perhaps(path, partial(self._whole_step, step, path, scope))
        value = any_of(combined_key("when", [path]), [outcome.value, None], self._count)
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
        holds = self._truth(step.when, scope)
        return False if holds is False else (wanted if holds else None)

    def _whole_step(self, step: Step, path: str, scope: PlanScope) -> Outcome:
        outcome = self._verb(step.verb, path, scope)
        for attempt in range(2, 1 + (1 if step.retry is None else step.retry.attempts)):
            again = f"{path}#{attempt}"
            repeated = self._perhaps(again, partial(self._verb, step.verb, again, scope))
            cost = outcome.cost.then(repeated.cost.or_nothing())
            outcome = Outcome(cost, outcome.value, outcome.conversation)
        if step.catch is not None:
            outcome = self._caught(step, path, scope, outcome)
        if step.finally_block is not None:
            cost = self._steps(step.finally_block.steps, scope.inner({}), f"{path}/finally/")
            outcome = Outcome(outcome.cost.then(cost), outcome.value, outcome.conversation)
        return outcome

    def _caught(self, step: Step, path: str, scope: PlanScope, outcome: Outcome) -> Outcome:
        assert step.catch is not None
        body = step.catch.body
        error: dict[str, PlanValue] = {
            name: Unknown(f"{path}:error.{name}") for name in ("code", "message", "path", "help")
        }
        variables: dict[str, PlanValue] = {step.catch.variable: error}
        if isinstance(body, Block):
            run_body = partial(self._block, body, f"{path}/catch", scope, variables)
            caught = self._perhaps(f"{path}/catch", run_body)
        else:
            value = self._evaluator.value_of(body, scope.inner(variables).values)
            caught = Outcome(Cost(), value)
        key = combined_key("catch", [path])
        return Outcome(
            outcome.cost.then(caught.cost.or_nothing()),
            any_of(key, [outcome.value, caught.value], self._count),
            _doubtful(outcome),
        )

    def _verb(self, verb: Verb, path: str, scope: PlanScope) -> Outcome:
        match verb:
            case Gen():
                return self.writer.plan(verb, path, scope, is_certain=self._num_maybe == 0)
            case Call():
                return Outcome(Cost(), Unknown(path))
            case ForEach():
                return self._for_each(verb, path, scope)
            case Loop():
                return self._loop(verb, path, scope)
            case If():
                return self._if(verb, path, scope)
            case Switch():
                return self._switch(verb, path, scope)
            case Parallel():
                return self._parallel(verb, path, scope)
            case Run():
                return self._run(verb, path, scope)
            case Ask(choices=choices):
                listed = [exactly(self._count(choice)) for choice in choices]
                tokens = one_of(listed) if listed else UNBOUNDED
                return Outcome(Cost(), Unknown(path, tokens, exactly(0)))
            case Set(value=value):
                return Outcome(Cost(), self._evaluator.value_of(value, scope.values))
            case _:
                assert_never(verb)

    def _block(
        self, block: Block, path: str, scope: PlanScope, variables: Mapping[str, PlanValue]
    ) -> Outcome:
        inner = scope.inner(variables)
        cost = self._steps(block.steps, inner, f"{path}/")
        return Outcome(cost, self._evaluator.value_of(block.result, inner.values))

    def _for_each(self, verb: ForEach, path: str, scope: PlanScope) -> Outcome:
        items = self._evaluator.value_of(verb.items, scope.values)
        if isinstance(items, list):
            branches = [
                self._block(verb.body, f"{path}[{idx}]", scope, {verb.variable: item})
                for idx, item in enumerate(items)
            ]
            cost = beside([branch.cost for branch in branches], verb.limit, verb.join)
            return Outcome(cost, self._joined(verb.join, path, branches))
        return self._for_open_list(verb, path, scope, items)

    def _for_open_list(
        self, verb: ForEach, path: str, scope: PlanScope, items: PlanValue
    ) -> Outcome:
        """Over a list whose length only the run gives."""
        source = items if isinstance(items, Unknown) else Unknown(key_of(items))
        count = source.num_items
        most = count.least + 1 if count.most is None else count.most
        num_planned = min(most, max(count.least, _MOST_OPEN_ITEMS))
        branches: list[Outcome] = []
        with ExitStack() as open_part:
            for idx in range(num_planned):
                if idx == count.least:
                    open_part.enter_context(self._maybe())
                key, tokens = f"{source.key}[{idx}]", Quantity(0, source.tokens.most)
                item = Unknown(key, tokens, UNBOUNDED, source.origins)
                variables: dict[str, PlanValue] = {verb.variable: item}
                branch = self._block(verb.body, f"{path}[{idx}]", scope, variables)
                is_sure = idx < count.least
                cost = branch.cost if is_sure else branch.cost.or_nothing()
                branches.append(Outcome(cost, branch.value))
        cost = beside([one.cost for one in branches], verb.limit, verb.join)
        if branches and count.may_exceed(num_planned):
            left = None if count.most is None else count.most - num_planned
            cost = cost.then(branches[-1].cost.times(Quantity(0, left)))
        is_whole = not count.may_exceed(num_planned)
        return Outcome(cost, self._collected(path, branches, count, is_whole=is_whole))

    def _collected(
        self, path: str, branches: Sequence[Outcome], count: Quantity, *, is_whole: bool
    ) -> Unknown:
        """A list of some of these values; of more than them unless `is_whole`."""
        values = [branch.value for branch in branches]
        tokens = total(tokens_of(value, self._count) + _AROUND_ITEM for value in values)
        origins = frozenset[str]().union(*map(origins_of, values))
        size = Quantity(0, tokens.most if is_whole else None)
        return Unknown(f"{path}:list", size, count, origins)

    def _parallel(self, verb: Parallel, path: str, scope: PlanScope) -> Outcome:
        branches: dict[str, Outcome] = {}
        for name, block in verb.branches.items():
            # A branch that is one step of its own name has no level of its own.
            segment = "" if list(block.steps) == [name] else f"/{name}"
            branches[name] = self._block(block, f"{path}{segment}", scope, {})
        cost = beside([branch.cost for branch in branches.values()], None, verb.join)
        joined = self._joined(verb.join, path, list(branches.values()))
        if isinstance(joined, list):
            joined = dict(zip(branches, joined, strict=True))
        return Outcome(cost, joined)

    def _joined(self, join: Join, path: str, branches: Sequence[Outcome]) -> PlanValue:
        """What branches come to: a list, or what only the run can say."""
        values = [branch.value for branch in branches]
        match join:
            case All():
                return values
            case Settle():
                return [self._settled(f"{path}[{idx}]", one) for idx, one in enumerate(values)]
            case Quorum(count):
                return self._collected(path, branches, exactly(count), is_whole=True)
            case First() | Best() | Vote():
                return any_of(f"{path}:joined", values, self._count) if values else None
            case _:
                assert_never(join)

    def _settled(self, key: str, value: PlanValue) -> PlanValue:
        return {
            "ok": Unknown(f"{key}:ok", Quantity(1, 5), exactly(0)),
            "value": any_of(f"{key}:value", [value, None], self._count),
            "error": Unknown(f"{key}:error", UNBOUNDED, exactly(0)),
        }

    def _loop(self, verb: Loop, path: str, scope: PlanScope) -> Outcome:
        """Round by round; from the first one on that may not come, the rest is open."""
        carried = {
            name: self._evaluator.value_of(value, scope.values)
            for name, value in verb.carried.items()
        }
        cost = Cost()
        ends: list[Mapping[str, PlanValue]] = []
        with ExitStack() as open_part:
            for idx in range(verb.max_rounds):
                goes_on = self._truth(verb.while_condition, scope.inner(carried), default=True)
                if goes_on is False:
                    break
                self._open_up(open_part, ends, goes_on, carried)
                inner = scope.inner(carried)
                of_round = self._steps(verb.body.steps, inner, f"{path}[{idx}]/")
                cost = cost.then(of_round.or_nothing() if ends else of_round)
                carried = carried | {
                    name: self._evaluator.value_of(value, inner.values)
                    for name, value in verb.next.items()
                }
                is_done = self._truth(verb.until, inner.inner(carried), default=False)
                if is_done is True:
                    break
                self._open_up(open_part, ends, is_done, carried)
        ends.append(carried)
        value: dict[str, PlanValue] = {
            name: any_of(f"{path}.{name}", [end[name] for end in ends], self._count)
            for name in carried
        }
        return Outcome(cost, value)

    def _open_up(
        self,
        open_part: ExitStack,
        ends: list[Mapping[str, PlanValue]],
        decided: bool | None,
        carried: Mapping[str, PlanValue],
    ) -> None:
        """Note that the loop may end here; what follows is not certain then."""
        if decided is None:
            if not ends:
                open_part.enter_context(self._maybe())
            ends.append(carried)

    def _if(self, verb: If, path: str, scope: PlanScope) -> Outcome:
        blocks: dict[str, Block | None] = {"then": verb.then, "else": verb.otherwise}
        holds = self._truth(verb.condition, scope)
        if holds is not None:
            blocks = {key: block for key, block in blocks.items() if (key == "then") == holds}
        return self._alternatives(blocks, path, scope)

    def _switch(self, verb: Switch, path: str, scope: PlanScope) -> Outcome:
        subject = self._evaluator.value_of(verb.subject, scope.values)
        if is_known(subject):
            for case in verb.cases:
                if json_equal(case.value, subject):
                    return self._alternatives({_word(case.value): case.body}, path, scope)
            return self._alternatives({"default": verb.default}, path, scope)
        blocks: dict[str, Block | None] = {_word(case.value): case.body for case in verb.cases}
        if verb.default is not None:
            blocks["default"] = verb.default
        return self._alternatives(blocks, path, scope)

    def _alternatives(
        self, blocks: Mapping[str, Block | None], path: str, scope: PlanScope
    ) -> Outcome:
        """One of these blocks; None does nothing and gives null."""

        def of(word: str, block: Block | None) -> Outcome:
            if block is None:
                return Outcome(Cost(), None)
            return self._block(block, f"{path}/{word}", scope, {})

        if len(blocks) == 1:
            return next(of(word, block) for word, block in blocks.items())
        outcomes: list[Outcome] = []
        for word, block in blocks.items():
            outcomes.append(self._perhaps(f"{path}/{word}", partial(of, word, block)))
        values = [outcome.value for outcome in outcomes]
        value = any_of(f"{path}:chosen", values, self._count)
        return Outcome(one_cost_of([outcome.cost for outcome in outcomes]), value)

    def _run(self, verb: Run, path: str, scope: PlanScope) -> Outcome:
        given = {
            name: self._evaluator.value_of(value, scope.values)
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

    def _truth(
        self, condition: Expression | None, scope: PlanScope, *, default: bool = True
    ) -> bool | None:
        """Whether a condition holds; None when only the run can say."""
        if condition is None:
            return default
        value = self._evaluator.value_of(condition, scope.values)
        return value if isinstance(value, bool) else None

    @contextmanager
    def _maybe(self) -> Generator[None]:
        """What is planned inside may not happen."""
        mark = self._book.mark()
        self._num_maybe += 1
        try:
            yield
        finally:
            self._num_maybe -= 1
            self._book.forget_since(mark)

    def _perhaps(self, path: str, plan: Callable[[], Outcome]) -> Outcome:
        """What may not happen may fail, too, without the run failing for certain."""
        with self._maybe():
            try:
                return plan()
            except WorkflowError as error:
                if error.code == _TOO_LARGE:
                    raise
                self.problems.append(f"{path}: {error.message}")
                return Outcome(Cost(), Unknown(path))


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


def _word(value: JsonValue) -> str:
    return value if isinstance(value, str) else json_text(value)
