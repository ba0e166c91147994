"""Choices, regular expressions, prefills and examples on the default model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from programs import gen, program, template

from flowforge.backends.engine import open_engine_backend
from flowforge.engine.config import EngineConfig
from flowforge.language.answer_specs import SamplingSpec
from flowforge.language.join_policies import All
from flowforge.language.program import SaidTurn
from flowforge.runtime.events import RunFinished
from flowforge.runtime.run import start

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]


async def test_constraints_prefills_and_examples_hold_on_a_real_model(
    default_model_dir: Path,
) -> None:
    short = SamplingSpec(max_tokens=8, temperature=1.0)
    examples = (SaidTurn("user", template("hot")), SaidTurn("assistant", template("cold")))
    workflow = program(
        gen("pick", user="Is water wet?", choice=("yes", "no"), n=3, pick=All(), sampling=short),
        gen("code", user="Give a code.", regex="[A-Z]{2}-[0-9]{3}", sampling=short),
        gen("begun", user="Count.", prefill=template("One, two,"), sampling=short),
        gen("opposite", user="up", turns=examples, sampling=short),
        gen("after", "begun", user="Go on.", from_step="begun", sampling=short),
    )
    async with (
        open_engine_backend(default_model_dir, config=EngineConfig(num_threads=1)) as backend,
        start(workflow, {}, backend, seed=3) as run,
    ):
        facts = [event.fact async for event in run.events()]
        outputs = await run.result()
        statistics = backend.statistics()

    picked = outputs["pick"]
    assert isinstance(picked, list)
    assert set(map(str, picked)) <= {"yes", "no"}
    assert re.fullmatch("[A-Z]{2}-[0-9]{3}", str(outputs["code"]))
    assert str(outputs["begun"]).startswith("One, two,")
    terminal = facts[-1]
    assert isinstance(terminal, RunFinished)
    accounting = terminal.accounting
    assert accounting.unique_prompt_tokens is not None
    # Each further sample computes the last token of the prompt again, for its logits.
    assert 0 <= accounting.prefilled_tokens - accounting.unique_prompt_tokens <= 2
    assert 0 == statistics.pages_held
