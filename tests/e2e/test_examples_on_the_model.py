"""The examples of workflows/ on the default model: each comes to its outputs and leaves nothing."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import flowforge as ff
from flowforge.backends.engine import open_engine_backend
from flowforge.language.inputs import resolve_inputs
from flowforge.planning import plan_program
from flowforge.planning.model_text import ModelText
from flowforge.runtime.events import RunFinished
from flowforge.runtime.run import start
from flowforge.testing import people
from flowforge.view.texts import accounting_line

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue

WORKFLOWS = Path(__file__).parents[2] / "workflows"
SEED = 7
# Every prompt follows from the inputs, so that the plan is the count of the run to the token.
KNOWN_BEFOREHAND = ("approval", "retell", "subflow")
QUICKEST = KNOWN_BEFOREHAND
INPUTS: dict[str, dict[str, JsonValue]] = {
    "map_reduce_summary": {
        "text": (WORKFLOWS / "texts" / "rabbit_hole.txt").read_text(encoding="utf-8")
    }
}

pytestmark = [pytest.mark.model, pytest.mark.timeout(300, func_only=True)]


@pytest.fixture(params=["asyncio"], name="anyio_backend", scope="module")
def one_loop() -> str:
    return "asyncio"


async def run_example(name: str, model: Path) -> None:
    """Run it, print what it cost, and hold it to its plan and to what every run promises."""
    program = ff.load(WORKFLOWS / f"{name}.yaml")
    inputs = resolve_inputs(program, INPUTS.get(name, {}))
    cost = plan_program(program, inputs, ModelText.in_directory(model)).cost
    somebody = people({"*": "approve"})
    async with (
        open_engine_backend(model) as engine,
        start(program, inputs, engine, seed=SEED, asker=somebody) as run,
    ):
        events = [event async for event in run.events()]
        fact = events[-1].fact
        assert isinstance(fact, RunFinished), fact
        # Seen with -s; docs/examples.md has these figures.
        sys.stdout.write(f"\n{name}: {accounting_line(fact.accounting)}\n{fact.outputs}\n")
        assert all(fact.outputs.values())
        assert fact.accounting.unique_prompt_tokens == fact.accounting.prefilled_tokens
        for planned, counted in (
            (cost.prefilled, fact.accounting.prefilled_tokens),
            (cost.reused, fact.accounting.reused_tokens),
            (cost.generated, fact.accounting.generated_tokens),
        ):
            assert planned.least <= counted <= (counted if planned.most is None else planned.most)
        assert cost.prefilled.is_exact == (name in KNOWN_BEFOREHAND)
        assert 0 == engine.statistics().pages_held


@pytest.mark.parametrize("name", QUICKEST)
async def test_a_quick_example_runs_on_the_default_model(
    name: str, default_model_dir: Path
) -> None:
    await run_example(name, default_model_dir)


@pytest.mark.by_hand
@pytest.mark.parametrize("name", sorted(file.stem for file in WORKFLOWS.glob("*.yaml")))
async def test_an_example_runs_on_the_default_model(name: str, default_model_dir: Path) -> None:
    await run_example(name, default_model_dir)


async def test_a_prompt_longer_than_the_context_fails_its_step_with_both_numbers(
    default_model_dir: Path,
) -> None:
    """WF-068."""
    retell = WORKFLOWS / "retell.yaml"
    async with open_engine_backend(default_model_dir) as engine:
        with pytest.raises(ff.RunFailedError) as caught:
            await ff.run(retell, backend=engine, text="flowers " * 9_000)

        assert 0 == engine.statistics().pages_held
    (failure,) = caught.value.failures
    assert ("retold", "EN202") == (failure.path, failure.error.code)
    prompt_tokens, context = (
        int(number.replace(",", "")) for number in re.findall(r"[\d,]{4,}", failure.error.message)
    )
    assert 9_000 < prompt_tokens
    assert 8_192 == context
