"""Every code is explained, and the examples of the language do what is said of them."""

from __future__ import annotations

import ast
import json
import pathlib
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any, cast

import pytest
from click.testing import CliRunner

import flowforge as ff
from flowforge.cli.app import app
from flowforge.language.codes.explanations import explain, families
from flowforge.runtime.checking import load_file

if TYPE_CHECKING:
    from flowforge.language.codes.explanations import Explanation

ROOT = pathlib.Path(__file__).parent.parent.parent
ALL = [one for family in families() for one in family.explanations]
WORKFLOWS = [one for one in ALL if one.language == "yaml"]


def codes_of(text: str, one: Explanation, folder: pathlib.Path) -> set[str]:
    """What a workflow is told by the check, or else by a run with the inputs of the example."""
    file = folder / "example.yaml"
    file.write_text(text, "utf-8")
    problems = load_file(file).diagnostics
    found = {problem.code for problem in problems if problem.location.file == str(file)}
    if found or one.inputs is one.answers is None:
        return found
    backend, inputs = ff.testing.script(one.answers or {}), cast("Any", one.inputs or {})
    try:
        ff.run_sync(file, backend=backend, **inputs)
    except ff.RunFailedError as error:
        return {failure.error.code for failure in error.failures}
    except ff.FlowForgeError as error:
        return {error.code}
    return set()


@pytest.mark.parametrize("one", WORKFLOWS, ids=lambda one: one.code)
def test_an_example_gives_its_code_and_nothing_once_it_is_mended(
    one: Explanation, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert {one.code} == codes_of(one.block, one, tmp_path)
    if one.wrong:
        assert 1 == one.block.count(one.wrong)
        assert set() == codes_of(one.mended, one, tmp_path)


@pytest.mark.parametrize("code", ["WF431", "WF432"])
def test_a_grammar_gives_its_code(code: str, tmp_path: pathlib.Path) -> None:
    one = explain(code)
    (tmp_path / "example.lark").write_text(one.block, "utf-8")
    file = tmp_path / "example.yaml"
    file.write_text(
        "flowforge: 1\nname: t\nsteps:\n"
        "  a: { user: hi, gen: { grammar: example.lark, max_tokens: 9 } }\n"
        "outputs: { a: '${ a }' }\n"
    )

    assert {code} == {problem.code for problem in load_file(file).diagnostics}


def test_nearly_every_code_of_the_check_has_a_workflow_as_its_example() -> None:
    of_the_check = {one.code for one in ALL if one.code < "WF3"}

    # The others are of files that are not there, too large, or too long to be shown.
    others = {"WF001", "WF003", "WF010", "WF011", "WF158", "WF209"}
    assert others == {code for code in of_the_check if code.startswith("WF")} - {
        one.code for one in WORKFLOWS
    }


def test_every_code_that_is_raised_is_explained_and_no_other() -> None:
    """A room that raises a new code explains it in flowforge/language/codes."""
    files = [
        file
        for folder in ("flowforge", "engine", "grammars", "tui")
        for file in (ROOT / folder).rglob("*.py")
    ]

    raised = {
        code
        for file in files
        for code in re.findall(r"[\"\[]((?:WF|TL|EN|IN)[0-9]{3})[\"\]]", file.read_text("utf-8"))
    }

    assert raised == {one.code for one in ALL}


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.code)
def test_a_code_is_explained_in_all_parts(one: Explanation) -> None:
    prose = [one.cause, one.fix, one.example]

    assert one.meaning.strip()
    assert len(one.cause.split()) >= 8
    assert len(one.fix.split()) >= 5
    assert one.example.strip() or one.block.strip()
    # Backticks hold code together, and no sentence is left hanging.
    assert all(text.count("`") % 2 == 0 for text in prose)
    assert all(text.strip().endswith((".", ":", "?", "`")) for text in prose if text)


def test_no_two_codes_are_explained_by_the_same_words() -> None:
    for texts in ([one.meaning for one in ALL], [one.cause for one in ALL]):
        assert len(texts) == len(set(texts))


def test_a_block_is_in_the_language_that_it_says() -> None:
    for one in ALL:
        match one.language:
            case "python":
                compile(one.block, one.code, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            case "json":
                json.loads(one.block)
            case "toml":
                tomllib.loads(one.block)
            case language:
                assert language in {"", "yaml", "sh", "lark", "text"}, one.code


def explained(*words: str) -> str:
    result = CliRunner().invoke(app, ["explain", *words])
    assert 0 == result.exit_code, result.output
    return result.stdout


def test_a_code_is_explained_with_cause_example_and_fix() -> None:
    shown = explained("wf202")

    assert shown == explained("error[WF202]: unknown name 'topic'")
    assert shown.startswith("WF202: an unknown name\n")
    assert 'topic }."' in shown
    assert "    + " in shown
    cause, example, fix = (shown.index(word) for word in ("reads a name", "\nExample", "\nFix"))
    assert cause < example < fix


def test_several_codes_are_explained_in_their_order() -> None:
    shown = explained("TL202", "EN202")

    assert shown.startswith("TL202: ")
    assert "\n\nEN202: " in shown


def test_without_a_code_every_family_and_code_has_a_line() -> None:
    lines = explained().splitlines()

    assert {family.title for family in families()} <= set(lines)
    assert [f"  {one.code}  {one.meaning}" for one in ALL] == [
        line for line in lines if line.startswith("  ")
    ]


def test_explanations_are_lines_of_json() -> None:
    (told,) = map(json.loads, explained("WF405", "--json").splitlines())

    assert ("WF405", "a division by zero", "yaml") == (
        told["code"],
        told["meaning"],
        told["language"],
    )
    assert "inputs.count == 0" in told["mended"]
    assert len(ALL) == len(explained("--json").splitlines())


@pytest.mark.parametrize(
    ("word", "help"),
    [
        ("WF2O2", "did you mean 'WF202'?"),
        ("EN220x", "did you mean 'EN220'?"),
        ("nonsense", "'flowforge explain' lists all codes"),
    ],
)
def test_an_unknown_code_is_refused_with_the_near_miss(word: str, help: str) -> None:
    result = CliRunner().invoke(app, ["explain", word])

    assert 2 == result.exit_code
    assert "error[WF519]: there is no code" in result.stderr
    assert f"help: {help}" in result.stderr
    with pytest.raises(ff.WorkflowError):
        explain(word)


def test_every_unknown_code_is_told_of_beside_those_that_are_explained() -> None:
    result = CliRunner().invoke(app, ["explain", "WF999", "EN202", "XX"])

    assert 2 == result.exit_code
    assert result.stdout.startswith("EN202: ")
    assert "there is no code 'WF999'" in result.stderr
    assert "there is no code 'XX'" in result.stderr


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="a disk that is always full")
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_output_that_does_not_fit_on_the_disk_is_no_fault_of_flowforge(option: list[str]) -> None:
    with pathlib.Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "flowforge", "explain", "EN202", *option]
        shown = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert 2 == shown.returncode
    assert shown.stderr == (
        "error[WF539]: what was to be written does not fit on the disk\n"
        "help: make room there, or write elsewhere\n"
    )
