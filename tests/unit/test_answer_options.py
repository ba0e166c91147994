"""How strictly answers are held to their form: what a file says, and what a run makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowforge.backends.script import ScriptBackend
from flowforge.errors import WorkflowError
from flowforge.language.answer_specs import AnswerOptions
from flowforge.language.loader import load_text
from flowforge.language.program import Gen, WrittenTurn
from flowforge.runtime import checking
from flowforge.runtime.retries import is_worth_trying
from flowforge.runtime.run import start

HEAD = "flowforge: 1\nname: t\nsteps:\n  a:\n    user: hi\n    gen:\n"
JSON = "      json: { type: array, items: { type: string, maxLength: 9 }, maxItems: 2 }\n"
UNIQUE = (
    "      json: { type: array, items: { type: string, maxLength: 9 }, maxItems: 2, "
    "uniqueItems: true }\n"
)


def gen_of(text: str) -> Gen:
    loaded = load_text(text)
    assert loaded.program is not None, [one.message for one in loaded.diagnostics]
    verb = loaded.program.steps["a"].verb
    assert isinstance(verb, Gen)
    return verb


def problems(text: str, tmp_path: Any) -> list[tuple[str, str, str]]:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    found = [(one.code, one.severity, one.message) for one in checking.check(path)]
    return [one for one in found if one[0] != "WF156"]  # that it has no outputs


def test_options_stand_beside_the_form() -> None:
    verb = gen_of(
        f"{HEAD}{JSON}      on_unsupported: relax\n      whitespace: bounded\n      on_cut: close\n"
    )

    assert AnswerOptions("relax", "bounded", "close") == verb.options
    assert AnswerOptions() == gen_of(HEAD + JSON).options


def test_a_written_turn_has_options_of_its_own() -> None:
    verb = gen_of(
        "flowforge: 1\nname: t\nsteps:\n  a:\n    user: hi\n    gen:\n"
        "    turns:\n      - user: one\n        gen: { regex: '[a-z]{3}', on_cut: close }\n"
    )

    assert isinstance(verb.turns, tuple)
    turn = verb.turns[1]
    assert isinstance(turn, WrittenTurn)
    assert "close" == turn.options.on_cut
    assert "fail" == verb.options.on_cut


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("      whitespace: bounded\n", "WF133", "there is no json"),
        ("      on_cut: close\n", "WF133", "no json, choice, regex or grammar"),
        ("      choice: [a, b]\n      on_unsupported: relax\n", "WF133", "there is no json"),
        (JSON + "      on_cut: clos\n", "WF107", "'fail' or 'close'"),
        (JSON + "      whitespace: true\n", "WF107", "'compact' or 'bounded'"),
    ],
)
def test_what_makes_no_sense_is_reported(options: str, code: str, words: str) -> None:
    (diagnostic,) = load_text(HEAD + options).diagnostics

    assert code == diagnostic.code
    assert words in diagnostic.message


def test_a_keyword_that_no_mask_enforces_is_an_error_with_its_place(tmp_path: Any) -> None:
    (found,) = problems(HEAD + UNIQUE, tmp_path)

    assert ("WF119", "error") == found[:2]
    assert "'uniqueItems' cannot be enforced" in found[2]


def test_relaxed_it_is_a_warning(tmp_path: Any) -> None:
    (found,) = problems(HEAD + UNIQUE + "      on_unsupported: relax\n", tmp_path)

    assert ("WF119", "warning") == found[:2]
    assert "judges only the finished answer" in found[2]


def test_a_named_type_may_have_what_no_mask_enforces_until_an_answer_is_held_to_it(
    tmp_path: Any,
) -> None:
    types = "types:\n  Names: { type: array, items: { type: string }, uniqueItems: true }\n"
    used = "inputs:\n  names: Names\n"
    free = (
        "flowforge: 1\nname: t\n"
        + types
        + used
        + "steps:\n  a: { user: '${ inputs.names }', gen: }\n"
    )
    held = (
        "flowforge: 1\nname: t\n"
        + types
        + "steps:\n  a: { user: hi, gen: { json: Names, max_tokens: 9 } }\n"
    )

    assert "WF119" not in {code for code, _, _ in problems(free, tmp_path)}
    (found,) = (one for one in problems(held, tmp_path) if one[0] == "WF119")
    assert "error" == found[1]
    assert "type 'Names'" in found[2]


def test_a_relaxed_answer_that_breaks_its_schema_is_asked_for_again() -> None:
    loaded = load_text(HEAD + UNIQUE + "      on_unsupported: relax\n")
    assert loaded.program is not None
    retry = loaded.program.steps["a"].retry

    assert retry is not None
    assert (4, False, ["WF413"]) == (retry.attempts, retry.is_for_faults, [*retry.codes])
    strict = load_text(HEAD + JSON).program
    assert strict is not None
    assert strict.steps["a"].retry is None


def test_the_retry_that_a_step_asks_for_is_for_such_answers_too() -> None:
    text = HEAD + UNIQUE + "      on_unsupported: relax\n    retry: 2\n"
    program = load_text(text).program

    assert program is not None
    retry = program.steps["a"].retry
    assert retry is not None
    assert 2 == retry.attempts
    assert is_worth_trying(retry, WorkflowError("WF413", "against the schema"))


async def test_a_run_asks_again_and_takes_the_answer_that_fits() -> None:
    program = load_text(
        HEAD + UNIQUE + "      on_unsupported: relax\noutputs: { a: '${ a }' }\n"
    ).program
    assert program is not None
    answers = [json.dumps(["x", "x"]), json.dumps(["y", "y"]), json.dumps(["x", "y"])]
    async with start(program, {}, ScriptBackend({"a": answers})) as run:
        assert {"a": ["x", "y"]} == await run.result()


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ("", None),
        ("      think: false\n", None),
        ("      think: true\n", 1_024),
        ("      think: 40\n", 40),
        ("      think: 40\n" + JSON, 40),
    ],
)
def test_thoughts_have_a_budget_of_their_own(options: str, budget: int | None) -> None:
    verb = gen_of(HEAD + "      max_tokens: 9\n" + options)

    assert budget == verb.options.think
    assert 9 == verb.sampling.max_tokens


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("      think: 0\n", "WF108", "at least 1"),
        ("      think: much\n", "WF107", "'think' must be a whole number"),
        ("      think: 9\n    prefill: Well\n", "WF133", "what the model thinks"),
        (JSON + "      scoring: exact\n", "WF133", "there is no choice"),
        ("      choice: [a, b]\n      scoring: sharp\n", "WF107", "'masked' or 'exact'"),
        ("      choice: [a, b]\n      scoring: exact\n      top_k: 3\n", "WF133", "'top_k'"),
        ("      choice: [a, b]\n      scoring: exact\n      think: 3\n", "WF133", "'think'"),
    ],
)
def test_what_cannot_be_thought_or_scored_is_reported(options: str, code: str, words: str) -> None:
    (diagnostic,) = load_text(HEAD + options).diagnostics

    assert code == diagnostic.code
    assert words in diagnostic.message


def test_what_a_file_says_of_all_its_steps_does_not_concern_a_scored_choice() -> None:
    defaults = "defaults: { gen: { max_tokens: 9, temperature: 0.5 } }\n"
    head = HEAD.replace("steps:", defaults + "steps:")

    verb = gen_of(head + "      choice: [a, b]\n      scoring: exact\n")

    assert "exact" == verb.options.scoring
