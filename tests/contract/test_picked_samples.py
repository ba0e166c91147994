"""`n` with `pick`: which of several samples is the step's value, and whose conversation goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import flowforge as ff
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = """
flowforge: 1
name: t
steps:
  a: { user: hi, gen: { n: 3, pick: best } }
  b: { from: a, user: why, gen: }
outputs: { a: '${ a }', b: '${ b }' }
"""


@pytest.fixture(name="workflow")
def workflow_file(tmp_path: Path) -> Path:
    file = tmp_path / "workflow.yaml"
    file.write_text(WORKFLOW.lstrip(), encoding="utf-8")
    return file


async def test_best_is_the_sample_that_the_model_found_likeliest(workflow: Path) -> None:
    backend = ScriptBackend(
        {
            "a[0]": ScriptedAnswer("unsure", mean_logprob=-2.0),
            "a[1]": ScriptedAnswer("sure", mean_logprob=-0.5),
            "a[2]": ScriptedAnswer("as sure", mean_logprob=-0.5),
            "b": "because",
        }
    )

    result = await ff.run(workflow, backend=backend)

    assert {"a": "sure", "b": "because"} == result
    asked = {prompt.label: prompt.text for prompt in backend.prompts}
    assert "user: hi\nassistant: sure\nuser: why" == asked["b"]


async def test_a_sample_that_failed_is_not_picked(workflow: Path) -> None:
    backend = ScriptBackend(
        {
            "a[0]": ScriptedAnswer(error=EngineError("EN900", "lost"), mean_logprob=0.0),
            "a[1]": ScriptedAnswer("one", mean_logprob=-3.0),
            "a[2]": ScriptedAnswer("two", mean_logprob=-1.0),
            "b": "because",
        }
    )

    result = await ff.run(workflow, backend=backend)

    assert "two" == result["a"]


async def test_only_samples_that_are_compared_are_asked_for_their_likelihood(
    workflow: Path,
) -> None:
    backend = ScriptBackend({"a[*]": "x", "b": "y"})

    await ff.run(workflow, backend=backend)

    asked = [getattr(prompt.request, "with_logprob", None) for prompt in backend.prompts]
    assert [True, True, True, False] == asked
