"""Plans against runs of the default model: exact where inputs say all, bounds elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from planned_texts import KNOWN, OPEN, accounting_of, plan_of

from flowforge.backends.engine import open_engine_backend
from flowforge.planning.model_text import ModelText
from flowforge.planning.quantity import Quantity, exactly

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture(params=["asyncio"], name="anyio_backend", scope="module")
def one_loop() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def tokens(default_model_dir: Path) -> ModelText:
    return ModelText.in_directory(default_model_dir)


async def test_where_inputs_say_all_the_engine_computes_what_the_plan_says(
    default_model_dir: Path, tokens: ModelText
) -> None:
    planned = {name: plan_of(text, tokens).cost for name, text in KNOWN.items()}
    counted = {}
    for name, text in KNOWN.items():
        async with open_engine_backend(default_model_dir) as engine:
            counted[name] = await accounting_of(text, engine)

    assert {name: cost.prefilled for name, cost in planned.items()} == {
        name: exactly(run.prefilled_tokens) for name, run in counted.items()
    }
    assert {name: cost.reused for name, cost in planned.items()} == {
        name: exactly(run.reused_tokens) for name, run in counted.items()
    }


@pytest.mark.parametrize("name", OPEN)
async def test_where_the_model_decides_the_engine_stays_within_the_plan(
    name: str, default_model_dir: Path, tokens: ModelText
) -> None:
    cost = plan_of(OPEN[name], tokens).cost
    async with open_engine_backend(default_model_dir) as engine:
        run = await accounting_of(OPEN[name], engine)

    assert is_within(run.prefilled_tokens, cost.prefilled)
    assert is_within(run.reused_tokens, cost.reused)
    assert is_within(run.generated_tokens, cost.generated)
    assert is_within(run.pages_peak, cost.pages)


def is_within(num: int, planned: Quantity) -> bool:
    """A plan without a most says that there is none, as where a prompt shows an error's text."""
    return planned.least <= num and (planned.most is None or num <= planned.most)
