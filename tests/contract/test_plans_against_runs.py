"""What a plan says beforehand against what a run is counted to cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from planned_texts import KNOWN, OPEN, WordText, accounting_of, plan_of

from flowforge.backends.script import ScriptBackend
from flowforge.planning.quantity import exactly

if TYPE_CHECKING:
    from flowforge.planning import Quantity

SCRIPTS: tuple[dict[str, str], ...] = (
    {"a[0]/c": "no", "a[*]/c": "yes", "a": "yes", "*": "one two three"},
    {"a[*]/c": "yes", "a": "no", "*": "x"},
    {"a[*]/c": "yes", "a": "yes", "*": "a b"},
    {"a[*]/c": "no", "a": "no", "*": "one two"},
)


def holds(quantity: Quantity, number: int) -> bool:
    return quantity.least <= number and (quantity.most is None or number <= quantity.most)


@pytest.mark.parametrize("name", KNOWN)
async def test_where_inputs_say_all_the_plan_is_the_count_of_the_run(name: str) -> None:
    plan = plan_of(KNOWN[name], WordText())

    run = await accounting_of(KNOWN[name], ScriptBackend({"*": "an answer of five words"}))

    assert exactly(run.prefilled_tokens) == plan.cost.prefilled
    assert run.unique_prompt_tokens == plan.cost.prefilled.most
    assert exactly(run.reused_tokens) == plan.cost.reused


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("name", OPEN)
async def test_where_the_model_decides_the_run_lies_within_the_plan(
    name: str, script: dict[str, str]
) -> None:
    answers = script | ({"a": '["p q","r"]'} if "json" in OPEN[name] else {})
    plan = plan_of(OPEN[name], WordText())

    run = await accounting_of(OPEN[name], ScriptBackend(answers))

    assert holds(plan.cost.prefilled, run.prefilled_tokens)
    assert holds(plan.cost.reused, run.reused_tokens)
    assert holds(plan.cost.generated, run.generated_tokens)
