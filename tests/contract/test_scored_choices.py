"""A choice by `scoring: exact` in a workflow: weighed as whole texts, said, counted and planned."""

from __future__ import annotations

import json

import pytest
from planned_texts import WordText, accounting_of, plan_of

from flowforge.backends.protocol import ScoreRequest
from flowforge.backends.script import ScriptBackend
from flowforge.language.loader import load_text, require_program
from flowforge.planning.quantity import exactly
from flowforge.runtime.run import start

HEAD = "flowforge: 1\nname: t\n"
TEXT = (
    "steps:\n"
    "  a: { user: Is it so?, gen: { choice: ['not at all', 'not now', 'yes'], scoring: exact } }\n"
    "  b: { from: a, user: Why is that?, gen: { max_tokens: 5 } }\n"
    "outputs: { a: '${ a }', b: '${ b }' }\n"
)
SCORES = {"not at all": -2.0, "not now": -0.5, "yes": -3.0}


async def test_the_likeliest_text_is_said_and_none_is_written() -> None:
    backend = ScriptBackend({"a": json.dumps(SCORES), "b": "so"})

    async with start(require_program(load_text(HEAD + TEXT)), {}, backend, seed=1) as run:
        outputs = await run.result()

    assert {"a": "not now", "b": "so"} == outputs
    first, second = backend.prompts
    assert isinstance(first.request, ScoreRequest)
    assert tuple(SCORES) == first.request.texts
    assert second.text.startswith("user: Is it so?\nassistant: not now\nuser: Why is that?")
    assert 1 == backend.statistics().generated_tokens


@pytest.mark.parametrize("temperature", [0.0, 2.0])
async def test_a_hot_choice_is_drawn_by_its_scores(temperature: float) -> None:
    text = TEXT.replace("scoring: exact", f"scoring: exact, temperature: {temperature}")
    chosen = set[object]()
    for seed in range(12):
        backend = ScriptBackend({"a": json.dumps(SCORES), "b": "so"})
        async with start(require_program(load_text(HEAD + text)), {}, backend, seed=seed) as run:
            chosen.add((await run.result())["a"])

    assert {"not now"} == chosen if temperature == 0 else len(chosen) > 1


async def test_the_plan_of_the_weighing_is_the_count_of_the_run() -> None:
    alone = "\n".join(line for line in TEXT.splitlines() if "  b:" not in line)
    alone = alone.replace(", b: '${ b }'", "") + "\n"

    plan = plan_of(alone, WordText())
    run = await accounting_of(alone, ScriptBackend({"a": json.dumps(SCORES)}))

    assert exactly(run.prefilled_tokens) == plan.cost.prefilled
    assert exactly(0) == plan.cost.generated
    assert 0 == run.generated_tokens


@pytest.mark.parametrize("chosen", SCORES)
async def test_what_follows_lies_within_the_plan(chosen: str) -> None:
    plan = plan_of(TEXT, WordText())
    run = await accounting_of(TEXT, ScriptBackend({"a": chosen, "b": "one two"}))

    for quantity, count in (
        (plan.cost.prefilled, run.prefilled_tokens),
        (plan.cost.reused, run.reused_tokens),
        (plan.cost.generated, run.generated_tokens),
    ):
        assert quantity.least <= count
        assert quantity.most is None or count <= quantity.most
    assert run.unique_prompt_tokens == run.prefilled_tokens
