"""The workflows of docs/answer-forms.md: each is sound, and runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.language.loader import load_text, require_program
from flowforge.runtime.run import start

PAGE = Path(__file__).parents[2] / "docs" / "answer-forms.md"
WORKFLOWS: list[str] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
REASONED = "Reason: it is late\nVerdict: reject"


@pytest.mark.parametrize(
    ("idx", "answers", "value"),
    [
        (0, REASONED, REASONED),
        (1, ["much against it", "reject"], "reject"),
        (2, "a question", "a question"),
        (3, ScriptedAnswer("16", thoughts="12 and 4"), 16),
    ],
)
async def test_a_workflow_of_the_page_runs(idx: int, answers: object, value: object) -> None:
    result = load_text(WORKFLOWS[idx])
    program = require_program(result)
    inputs = {"letter": "Hello"} if "letter" in program.inputs else {}

    backend = ScriptBackend({"*": answers})  # type: ignore[dict-item]  # as the case says
    async with start(program, inputs, backend, seed=1) as run:
        outputs = await run.result()

    assert () == tuple(result.diagnostics)
    assert [value] == list(outputs.values())


def test_every_workflow_of_the_page_is_run() -> None:
    assert 4 == len(WORKFLOWS)


async def test_a_verdict_outside_its_form_is_refused() -> None:
    program = require_program(load_text(WORKFLOWS[0]))
    backend = ScriptBackend({"*": "Reason: it is late\nVerdict: maybe"})

    async with start(program, {"letter": "Hello"}, backend, seed=1) as run:
        with pytest.raises(Exception, match="WF513"):
            await run.result()
