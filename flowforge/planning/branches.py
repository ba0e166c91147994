"""Verbs with blocks: branches at once, rounds in a row, and one block of several."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, assert_never

from flowforge.language.join_policies import All, Best, First, Quorum, Settle, Vote
from flowforge.language.json_values import json_equal, json_text
from flowforge.planning.costs import Cost, beside, one_cost_of
from flowforge.planning.generations import Outcome
from flowforge.planning.quantity import UNBOUNDED, Quantity, exactly, total
from flowforge.planning.values import (
    PlanValue,
    Unknown,
    any_of,
    is_known,
    key_of,
    origins_of,
    tokens_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.language.join_policies import Join
    from flowforge.language.program import Block, ForEach, If, JsonValue, Loop, Parallel, Switch
    from flowforge.planning.planner import Planner
    from flowforge.planning.scope import PlanScope

_MOST_OPEN_ITEMS = 200
_AROUND_ITEM = exactly(4)  # quotes, comma and space, if the list is written as JSON


def plan_for_each(planner: Planner, verb: ForEach, path: str, scope: PlanScope) -> Outcome:
    """A branch for each item; as many as may be of a list that only the run gives."""
    items = planner.evaluator.value_of(verb.items, scope.values)
    if isinstance(items, list):
        branches = [
            _branch(planner, verb.body, f"{path}[{idx}]", scope, {verb.variable: item}, verb.join)
            for idx, item in enumerate(items)
        ]
        cost = beside([branch.cost for branch in branches], verb.limit, verb.join)
        return Outcome(cost, _joined(planner, verb.join, path, branches))
    return _for_open_list(planner, verb, path, scope, items)


def plan_parallel(planner: Planner, verb: Parallel, path: str, scope: PlanScope) -> Outcome:
    """Branches beside each other, joined as the verb says."""
    branches: dict[str, Outcome] = {}
    for name, block in verb.branches.items():
        # A branch that is one step of its own name has no level of its own.
        segment = "" if list(block.steps) == [name] else f"/{name}"
        branches[name] = _branch(planner, block, f"{path}{segment}", scope, {}, verb.join)
    cost = beside([branch.cost for branch in branches.values()], None, verb.join)
    joined = _joined(planner, verb.join, path, list(branches.values()))
    if isinstance(joined, list):
        joined = dict(zip(branches, joined, strict=True))
    return Outcome(cost, joined)


def _branch(
    planner: Planner,
    block: Block,
    path: str,
    scope: PlanScope,
    variables: Mapping[str, PlanValue],
    join: Join,
) -> Outcome:
    """One of several; only `all` fails by the failure of one."""
    plan = partial(planner.block, block, path, scope, variables)
    return plan() if isinstance(join, All) else planner.allowed_to_fail(path, plan)


def plan_loop(planner: Planner, verb: Loop, path: str, scope: PlanScope) -> Outcome:
    """Round by round; from the first one on that may not come, the rest is open."""
    carried = {
        name: planner.evaluator.value_of(value, scope.values)
        for name, value in verb.carried.items()
    }
    cost = Cost()
    ends: list[Mapping[str, PlanValue]] = []
    with ExitStack() as open_part:
        for idx in range(verb.max_rounds):
            goes_on = planner.truth(verb.while_condition, scope.inner(carried), default=True)
            if goes_on is False:
                break
            _open_up(planner, open_part, ends, goes_on, carried)
            inner = scope.inner(carried)
            of_round = planner.steps(verb.body.steps, inner, f"{path}[{idx}]/")
            cost = cost.then(of_round.or_nothing() if ends else of_round)
            carried = carried | {
                name: planner.evaluator.value_of(value, inner.values)
                for name, value in verb.next.items()
            }
            is_done = planner.truth(verb.until, inner.inner(carried), default=False)
            if is_done is True:
                break
            _open_up(planner, open_part, ends, is_done, carried)
    ends.append(carried)
    value: dict[str, PlanValue] = {
        name: any_of(f"{path}.{name}", [end[name] for end in ends], planner.count)
        for name in carried
    }
    return Outcome(cost, value)


def plan_if(planner: Planner, verb: If, path: str, scope: PlanScope) -> Outcome:
    """The block that the condition chooses; either of them where only the run knows it."""
    blocks: dict[str, Block | None] = {"then": verb.then, "else": verb.otherwise}
    holds = planner.truth(verb.condition, scope)
    if holds is not None:
        blocks = {key: block for key, block in blocks.items() if (key == "then") == holds}
    return _alternatives(planner, blocks, path, scope)


def plan_switch(planner: Planner, verb: Switch, path: str, scope: PlanScope) -> Outcome:
    """The block of the case that is known; any of them where only the run knows it."""
    subject = planner.evaluator.value_of(verb.subject, scope.values)
    if is_known(subject):
        for case in verb.cases:
            if json_equal(case.value, subject):
                return _alternatives(planner, {_word(case.value): case.body}, path, scope)
        return _alternatives(planner, {"default": verb.default}, path, scope)
    blocks: dict[str, Block | None] = {_word(case.value): case.body for case in verb.cases}
    if verb.default is not None:
        blocks["default"] = verb.default
    return _alternatives(planner, blocks, path, scope)


def _for_open_list(
    planner: Planner, verb: ForEach, path: str, scope: PlanScope, items: PlanValue
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
                open_part.enter_context(planner.maybe())
            key, tokens = f"{source.key}[{idx}]", Quantity(0, source.tokens.most)
            item = Unknown(key, tokens, UNBOUNDED, source.origins)
            variables: dict[str, PlanValue] = {verb.variable: item}
            branch = _branch(planner, verb.body, f"{path}[{idx}]", scope, variables, verb.join)
            is_sure = idx < count.least
            cost = branch.cost if is_sure else branch.cost.or_nothing()
            branches.append(Outcome(cost, branch.value))
    cost = beside([one.cost for one in branches], verb.limit, verb.join)
    if branches and count.may_exceed(num_planned):
        left = None if count.most is None else count.most - num_planned
        cost = cost.then(branches[-1].cost.times(Quantity(0, left)))
    is_whole = not count.may_exceed(num_planned)
    return Outcome(cost, _collected(planner, path, branches, count, is_whole=is_whole))


def _joined(planner: Planner, join: Join, path: str, branches: Sequence[Outcome]) -> PlanValue:
    """What branches come to: a list, or what only the run can say."""
    values = [branch.value for branch in branches]
    match join:
        case All():
            return values
        case Settle():
            return [_settled(planner, f"{path}[{idx}]", one) for idx, one in enumerate(values)]
        case Quorum(count):
            return _collected(planner, path, branches, exactly(count), is_whole=True)
        case First() | Best() | Vote():
            return any_of(f"{path}:joined", values, planner.count) if values else None
        case _:
            assert_never(join)


def _settled(planner: Planner, key: str, value: PlanValue) -> PlanValue:
    return {
        "ok": Unknown(f"{key}:ok", Quantity(1, 5), exactly(0)),
        "value": any_of(f"{key}:value", [value, None], planner.count),
        "error": Unknown(f"{key}:error", UNBOUNDED, exactly(0)),
    }


def _collected(
    planner: Planner, path: str, branches: Sequence[Outcome], count: Quantity, *, is_whole: bool
) -> Unknown:
    """A list of some of these values; of more than them unless `is_whole`."""
    values = [branch.value for branch in branches]
    tokens = total(tokens_of(value, planner.count) + _AROUND_ITEM for value in values)
    origins = frozenset[str]().union(*map(origins_of, values))
    size = Quantity(0, tokens.most if is_whole else None)
    return Unknown(f"{path}:list", size, count, origins)


def _open_up(
    planner: Planner,
    open_part: ExitStack,
    ends: list[Mapping[str, PlanValue]],
    decided: bool | None,
    carried: Mapping[str, PlanValue],
) -> None:
    """Note that the loop may end here; what follows is not certain then."""
    if decided is None:
        if not ends:
            open_part.enter_context(planner.maybe())
        ends.append(carried)


def _alternatives(
    planner: Planner, blocks: Mapping[str, Block | None], path: str, scope: PlanScope
) -> Outcome:
    """One of these blocks; None does nothing and gives null."""

    def of(word: str, block: Block | None) -> Outcome:
        if block is None:
            return Outcome(Cost(), None)
        return planner.block(block, f"{path}/{word}", scope, {})

    if len(blocks) == 1:
        return next(of(word, block) for word, block in blocks.items())
    outcomes: list[Outcome] = []
    for word, block in blocks.items():
        outcomes.append(planner.perhaps(f"{path}/{word}", partial(of, word, block)))
    values = [outcome.value for outcome in outcomes]
    value = any_of(f"{path}:chosen", values, planner.count)
    return Outcome(one_cost_of([outcome.cost for outcome in outcomes]), value)


def _word(value: JsonValue) -> str:
    return value if isinstance(value, str) else json_text(value)
