"""`grammar:` in a workflow: what it accepts, where its problems are, and what the value is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import flowforge as ff
from flowforge.errors import FlowForgeError
from flowforge.runtime.checking import load_file
from flowforge.testing import in_turn, script

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "flowforge: 1\nname: w\nsteps:\n  a:\n    user: u\n    gen:\n      max_tokens: 9\n"
TAIL = "\noutputs:\n  a: ${ a }\n"
SUM = '      grammar: |\n        start: NUMBER ("+" NUMBER)*\n        NUMBER: /[0-9]+/\n'


def _workflow(folder: Path, grammar: str) -> Path:
    file = folder / "w.yaml"
    file.write_text(HEAD + grammar + TAIL, encoding="utf-8")
    return file


def _problems(folder: Path, grammar: str) -> list[tuple[str, str, str]]:
    diagnostics = load_file(_workflow(folder, grammar)).diagnostics
    places = [one.location for one in diagnostics]
    return [
        (one.code, f"{place.file.rpartition('/')[2]}:{place.line}:{place.column}", one.message)
        for one, place in zip(diagnostics, places, strict=True)
    ]


def _run(folder: Path, grammar: str, answer: str) -> Any:
    file = _workflow(folder, grammar)
    return ff.run_sync(file, backend=script({"a": answer}))["a"]


def test_the_value_is_the_text_and_its_tree(tmp_path: Path) -> None:
    tree = {"rule": "start", "children": ["1", "22"]}

    assert {"text": "1+22", "tree": tree} == _run(tmp_path, SUM, "1+22")


def test_without_a_tree_the_value_is_the_text(tmp_path: Path) -> None:
    (tmp_path / "sum.lark").write_text('start: NUMBER "+" NUMBER\n%import common.NUMBER\n')

    grammar = "      grammar: { file: sum.lark, tree: false }"

    assert "1+22" == _run(tmp_path, grammar, "1+22")


def test_a_shipped_grammar_is_called_by_its_name(tmp_path: Path) -> None:
    value = _run(tmp_path, "      grammar: flowforge/iso_datetime", "2024-02-29")

    assert {"rule": "date", "children": ["2024-02-29"]} == value["tree"]["children"][0]


def test_the_dialect_of_the_mask_has_no_tree(tmp_path: Path) -> None:
    grammar = (
        "      grammar:\n        dialect: llguidance\n"
        '        text: \'start: %json {"type": "integer"}\'\n'
    )

    assert "12" == _run(tmp_path, grammar, "12")


def test_special_tokens_are_left_to_the_model_that_has_them(tmp_path: Path) -> None:
    grammar = (
        "      grammar:\n        dialect: llguidance\n"
        '        text: \'start: "a" <|python_tag|> "b"\'\n'
    )

    assert [] == _problems(tmp_path, grammar)
    assert "ab" == _run(tmp_path, grammar, "ab")


@pytest.mark.parametrize("answer", ["1+", "x", ""])
def test_an_answer_that_lark_refuses_fails_the_step(tmp_path: Path, answer: str) -> None:
    with pytest.raises(FlowForgeError, match="is not in the grammar"):
        _run(tmp_path, SUM, answer)


def test_a_problem_of_an_inline_grammar_has_its_place_in_the_workflow(tmp_path: Path) -> None:
    grammar = "      grammar: |\n        start: A B\n        A: /a+(?!x)/\n        B: /x?b/\n"

    (problem,) = _problems(tmp_path, grammar)

    assert ("WF432", "w.yaml:10:15") == problem[:2]
    assert "'(?!'" in problem[2]


def test_a_problem_of_a_file_has_its_place_there(tmp_path: Path) -> None:
    (tmp_path / "g.lark").write_text("start: A\n\nA: /(a)b\\1/\n")

    (problem,) = _problems(tmp_path, "      grammar: g.lark")

    assert ("WF432", "g.lark:3:9") == problem[:2]
    assert "back-reference" in problem[2]


def test_a_problem_of_an_imported_file_has_its_place_there(tmp_path: Path) -> None:
    (tmp_path / "inner.lark").write_text('B: "b"\nA: /^a/\n')
    (tmp_path / "g.lark").write_text("%import .inner (A, B)\nstart: B A\n")

    (problem,) = _problems(tmp_path, "      grammar: g.lark")

    assert ("WF432", "inner.lark:2:5") == problem[:2]


def test_approximate_makes_a_warning_of_it(tmp_path: Path) -> None:
    (tmp_path / "g.lark").write_text("start: A B\nA: /a+(?!x)/\nB: /x?b/\n")

    loaded = load_file(_workflow(tmp_path, "      grammar: { file: g.lark, approximate: true }"))

    assert ["warning"] == [one.severity for one in loaded.diagnostics]
    assert loaded.program is not None


@pytest.mark.parametrize(
    ("grammar", "code", "message"),
    [
        ("      grammar: none.lark", "WF430", "cannot be read"),
        ("      grammar: ../g.lark", "WF430", "outside"),
        ("      grammar: flowforge/nothing", "WF430", "there is no grammar"),
        ("      grammar: word", "WF107", "neither a file nor a grammar"),
        ("      grammar: [1]", "WF107", "must be a text or a mapping"),
        ("      grammar: {}", "WF107", "needs one of"),
        ("      grammar: { file: a.lark, text: b }", "WF107", "needs one of"),
        ("      grammar: { text: 'start: \"a\"', parser: glr }", "WF107", "'earley' or 'lalr'"),
        ("      grammar: { text: 'start: \"a\"', tree: 1 }", "WF107", "true or false"),
        ("      grammar: { text: 'start: \"a\"', begin: x }", "WF101", "not a key"),
        ("      grammar: 'start: A'", "WF431", "used but not defined"),
        ("      grammar: 'begin: \"a\"'", "WF431", "start"),
        ("      grammar: 'start: start \"a\"'", "WF431", "no text can match"),
        ("      grammar: 'start: \"a'", "WF431", "lark refuses"),
        ("      grammar: { dialect: llguidance, text: 'start: A' }", "WF431", "unknown name"),
        ("      grammar: { dialect: llguidance, parser: lalr, text: 'start: \"a\"' }", "WF107", ""),
        ("      grammar: 'start: \"a\"'\n      regex: a", "WF133", "forms"),
    ],
)
def test_what_cannot_be_a_grammar_is_told_at_the_check(
    tmp_path: Path, grammar: str, code: str, message: str
) -> None:
    problems = _problems(tmp_path, grammar)

    assert code in [problem[0] for problem in problems]
    assert any(message in problem[2] for problem in problems), problems


def test_a_turn_before_the_answer_has_a_grammar_too(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(
        "flowforge: 1\nname: w\nsteps:\n  a:\n    turns:\n      - user: u\n        as: n\n"
        "        gen: { max_tokens: 9, grammar: 'start: /[0-9]/' }\n    user: ${ n.text }\n"
        "    gen: { max_tokens: 9 }\noutputs:\n  a: ${ a }\n"
    )
    backend = script({"a": in_turn("7", "done")})

    assert {"a": "done"} == ff.run_sync(file, backend=backend)
    assert "user: 7" in backend.prompts[-1].text
