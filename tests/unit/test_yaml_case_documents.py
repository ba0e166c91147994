"""The collected YAML documents as workflows: their steps in FlowForge's keys, checked and run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs import Stage

from flowforge.language.loader import load_text, require_program
from flowforge.language.source import Source
from flowforge.language.yaml_document import read_document
from flowforge.language.yaml_nodes import value_of_node
from flowforge.runtime.commands import Said, StartGeneration, Succeeded

if TYPE_CHECKING:
    from programs import Work

    from flowforge.language.program import JsonValue

CASES = Path(__file__).parents[1] / "cases" / "yaml"


def steps_of(name: str) -> list[dict[str, Any]]:
    composed = read_document(Source(name, (CASES / name).read_text(encoding="utf-8")))
    assert composed.root is not None, composed.diagnostics
    document = value_of_node(composed.root)
    assert isinstance(document, dict)
    steps: Any = document["steps"]
    return list(steps)


def workflow(steps: list[dict[str, Any]], output: str) -> str:
    """A workflow of steps with `id`, `needs`, `foreach` and `prompt`, as FlowForge says that."""
    ours = {step["id"]: _step(step) for step in steps}
    outputs = {"found": f"${{ {output} }}"}
    return json.dumps({"flowforge": 1, "name": "t", "steps": ours, "outputs": outputs})


def _step(step: dict[str, Any]) -> dict[str, Any]:
    prompt = re.sub(r"\{\{ (?:steps\.)?(\w+)(?:\.output)? \}\}", r"${ \1 }", step["prompt"])
    ours = {"user": prompt, "gen": {"max_tokens": 9}}
    if "foreach" in step:
        listed = json.dumps(step["foreach"])
        return {"for": f"item in {listed}", "do": {"text": ours}}
    return {**ours, "after": step["needs"]} if "needs" in step else ours


def echo(work: Work) -> JsonValue:
    """A model that says what it was asked."""
    assert isinstance(work, StartGeneration)
    (turn,) = work.said
    assert isinstance(turn, Said)
    return turn.text


def found(text: str) -> JsonValue:
    """What a workflow gives with that model."""
    outcome = Stage(require_program(load_text(text)), echo).run()
    assert isinstance(outcome, Succeeded)
    return dict(outcome.outputs)["found"]


def test_every_document_is_a_test() -> None:
    sources = "".join(
        (Path(__file__).parent / name).read_text(encoding="utf-8")
        for name in ("test_language_cases.py", "test_yaml_case_documents.py")
    )

    assert [] == [one.name for one in CASES.glob("*.yaml") if f'"{one.name}"' not in sources]


def test_steps_that_stand_before_those_they_need_run_behind_them() -> None:
    steps = steps_of("y10_forward_refs.yaml")

    told = found(workflow(steps, "[a, b, c, d]"))

    assert ["x", "x1", "x2", "x1x2"] == told


def test_a_prompt_for_each_country_names_it() -> None:
    steps = steps_of("y02_countries.yaml")

    told = found(workflow(steps, "each_country"))

    countries = ["SE", "NO", "DK", "no", "Yes", "y", "n", "off", "ON"]
    assert [f"Capital of {country}?" for country in countries] == told


def test_a_cycle_a_step_that_needs_itself_and_an_unknown_one_are_all_told() -> None:
    text = workflow(steps_of("y09_cycle.yaml"), "a")

    told = [one.message for one in load_text(text).diagnostics]

    assert [
        "steps wait for each other: a → c → b → a",
        "step 'd' needs itself: d → d",
        "'after' names 'ghost', which is no step in scope",
    ] == told


def test_odd_values_are_what_they_say() -> None:
    steps = steps_of("y12_odd_values.yaml")

    assert ["步骤", None, "2024-10-01", "a:b/../c"] == [step["id"] for step in steps]
    prompts = [step["prompt"] for step in steps]
    assert [None, "null", "it's {a}", "tab\tand \U0001f44d"] == prompts
