"""Which model a step runs on, as the checked program says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.loader import load, load_text, require_program
from flowforge.language.models import models_of
from flowforge.language.program import ForEach, Gen, Run

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.language.program import Program, Step

HEAD = "flowforge: 1\nname: t\nsteps:\n"


def program_of(steps: str, *, defaults: str = "") -> Program:
    return require_program(load_text(f"{defaults}{HEAD}{steps}"))


def model_of(step: Step) -> str | None:
    assert isinstance(step.verb, Gen)
    return step.verb.model


def test_a_step_without_a_word_runs_on_the_models_of_the_run() -> None:
    program = program_of("  a: { user: Hi., gen: }\n")

    assert model_of(program.steps["a"]) is None
    assert models_of(program) == (None,)


def test_a_continuation_runs_on_the_model_of_the_conversation() -> None:
    program = program_of(
        "  a: { user: Hi., gen: , model: Qwen/Qwen3-0.6B }\n"
        "  b: { from: a, user: Go on., gen: }\n"
        "  c:\n    for: one in [1, 2]\n    do:\n      d: { from: b, user: 'And ${ one }?', gen: }\n"
    )

    loop = program.steps["c"].verb
    assert isinstance(loop, ForEach)
    assert model_of(program.steps["b"]) == "Qwen/Qwen3-0.6B"
    assert model_of(loop.body.steps["d"]) == "Qwen/Qwen3-0.6B"
    assert models_of(program) == ("Qwen/Qwen3-0.6B",)


def test_the_model_that_a_conversation_has_anyway_may_be_said_again() -> None:
    program = program_of(
        "  a: { user: Hi., gen: , model: Qwen/Qwen3-0.6B }\n"
        "  b: { from: a, user: Go on., gen: , model: Qwen/Qwen3-0.6B }\n"
    )

    assert model_of(program.steps["b"]) == "Qwen/Qwen3-0.6B"


def test_a_continuation_on_another_model_is_an_error_with_both_names() -> None:
    loaded = load_text(
        f"{HEAD}  a: {{ user: Hi., gen: }}\n"
        "  b: { from: a, user: Go on., gen: , model: Qwen/Qwen3-0.6B }\n"
    )

    (problem,) = loaded.diagnostics
    assert problem.code == "WF139"
    assert problem.message == (
        "step 'b' continues 'a', which runs on the run's own model, and asks for 'Qwen/Qwen3-0.6B'"
    )
    assert problem.help is not None
    assert "leave 'model' out" in problem.help


def test_the_default_model_of_the_file_is_the_runs_own() -> None:
    program = program_of(
        "  a: { user: Hi., gen: }\n", defaults="defaults: { model: Qwen/Qwen3-0.6B }\n"
    )

    assert program.model == "Qwen/Qwen3-0.6B"
    assert models_of(program) == (None,)


def test_a_directory_is_seen_from_the_file_and_a_subflow_keeps_its_default(tmp_path: Path) -> None:
    inner = tmp_path / "inner.yaml"
    inner.write_text(
        f"defaults: {{ model: ./small }}\n{HEAD}  a: {{ user: Hi., gen: }}\n"
        "outputs: { a: '${ a }' }\n"
    )
    outer = tmp_path / "outer.yaml"
    outer.write_text(
        f"{HEAD}  one: {{ run: inner.yaml }}\n  two: {{ user: Hi., gen: , model: ../large }}\n"
        "outputs: { one: '${ one }', two: '${ two }' }\n"
    )

    program = require_program(load(outer))

    run = program.steps["one"].verb
    assert isinstance(run, Run)
    assert model_of(run.program.steps["a"]) == str(tmp_path / "small")
    assert model_of(program.steps["two"]) == str(tmp_path.parent / "large")
    assert models_of(program) == (str(tmp_path / "small"), str(tmp_path.parent / "large"))
