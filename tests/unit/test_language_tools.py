"""Tools in a workflow file: what a declaration says, and what a step may ask of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.language.loader import load, load_text, require_program
from flowforge.language.program import Gen, McpServer, ToolUse

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.language.program import ToolSpec

HEAD = """\
flowforge: 1
name: t
tools:
  add: { python: 'maths:add', effect: read, description: Adds. }
  docs: { mcp: { command: [python, server.py], env: [TOKEN] }, only: [search] }
  web: { mcp: { url: 'http://localhost/mcp', token_env: KEY }, max_result: 100 }
steps:
"""


def gen(options: str) -> Gen:
    text = f"{HEAD}  a: {{ user: hi, gen: {options} }}\n"
    verb = require_program(load_text(text)).steps["a"].verb
    assert isinstance(verb, Gen)
    return verb


def tools() -> dict[str, ToolSpec]:
    return dict(require_program(load_text(f"{HEAD}  a: {{ set: 1 }}\n")).tools)


def problems(steps: str, head: str = HEAD) -> list[tuple[str, str]]:
    return [(one.code, one.message) for one in load_text(f"{head}{steps}").diagnostics]


def test_a_tool_is_a_function_or_a_server() -> None:
    declared = tools()

    assert (declared["add"].function, declared["add"].description) == ("maths:add", "Adds.")
    command = ("python", "server.py")
    assert declared["docs"].server == McpServer(command=command, env_names=("TOKEN",))
    assert declared["docs"].only == ("search",)
    assert declared["web"].server == McpServer(url="http://localhost/mcp", token_env="KEY")
    assert declared["web"].max_result_chars == 100


def test_a_workflow_is_a_tool_with_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "sub.yaml").write_text(
        "flowforge: 1\nname: sub\ninputs: { topic: string }\n"
        "steps: { a: { user: '${ inputs.topic }', gen: } }\noutputs: { text: '${ a }' }\n"
    )
    main = tmp_path / "main.yaml"
    main.write_text(
        "flowforge: 1\nname: main\ntools: { sub: { workflow: sub.yaml } }\n"
        "steps: { a: { user: hi, gen: { tools: [sub] } } }\n"
    )

    program = require_program(load(main))

    assert program.tools["sub"].program is not None
    assert program.tools["sub"].program.name == "sub"


def test_a_step_with_tools_says_which_and_how() -> None:
    declared = tools()

    assert gen("{ tools: [add] }").tool_use == ToolUse((declared["add"],))
    options = "{ tools: [add, docs], choice: required, rounds: 3, parallel: false }"
    assert gen(options).tool_use == ToolUse(
        (declared["add"], declared["docs"]), "required", None, 3, 1
    )
    options = "{ tools: [add], choice: add, parallel: 4, on_rounds: fail, on_tool_error: fail }"
    assert gen(options).tool_use == ToolUse(
        (declared["add"],), "required", "add", 8, 4, "fail", "fail"
    )
    named = gen("{ tools: [docs], choice: docs__search }").tool_use
    assert named is not None
    assert named.named == "docs__search"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("{ tools: [ad] }", "WF131", "there is no tool 'ad'"),
        ("{ tools: [add], choice: docs }", "WF131", "no tool 'docs'"),
        ("{ tools: [docs], choice: docs }", "WF131", "no tool 'docs'"),
        ("{ tools: [add], choice: { a: b } }", "WF133", "which tool is called"),
        ("{ tools: [add], choice: [a, b], json: { type: string } }", "WF133", "the forms of"),
        ("{ tools: [add], choice: [a, b], scoring: exact }", "WF133", "no token is sampled"),
        ("{ tools: [docs], json: integer, on_unsupported: relax }", "WF133", "call 'docs' again"),
        ("{ tools: [add], n: 3, pick: majority }", "WF133", "one answer"),
        ("{ tools: [add], stop: x }", "WF133", "in its middle"),
        ("{ rounds: 3 }", "WF133", "the step has none"),
        ("{ tools: [add], rounds: 0 }", "WF108", "at least 1"),
        ("{ tools: [add], parallel: 65 }", "WF108", "at most 64"),
        ("{ tools: [add], on_rounds: stop }", "WF107", "'answer' or 'fail'"),
        ("{ tools: [] }", "WF107", "list of tools"),
    ],
)
def test_what_cannot_be_asked_of_tools_is_said(options: str, code: str, words: str) -> None:
    found = problems(f"  a: {{ user: hi, gen: {options} }}\n")

    assert found
    assert found[0][0] == code
    assert words in found[0][1]


def test_an_answer_with_tools_may_have_any_form() -> None:
    declared = tools()
    use = ToolUse((declared["add"],))

    assert gen("{ tools: [add], json: integer }").json_schema == {"type": "integer"}
    assert gen("{ tools: [add], regex: a+ , max_tokens: 9 }").regex == "a+"
    assert gen("{ tools: [add], grammar: flowforge/arithmetic }").grammar is not None
    listed = gen("{ tools: [add], choice: [yes, no], on_cut: close }")
    assert (listed.choice, listed.tool_use) == (("yes", "no"), use)
    relaxed = gen("{ tools: [add], json: { type: integer }, on_unsupported: relax }")
    assert relaxed.options.on_unsupported == "relax"


def test_no_answer_with_tools_is_begun_by_its_author() -> None:
    found = problems("  a: { user: hi, prefill: So, gen: { tools: [add] } }\n")

    assert [code for code, _ in found] == ["WF133"]


@pytest.mark.parametrize(
    ("declaration", "code", "words"),
    [
        ("{ effect: read }", "WF103", "does not say what it is"),
        ("{ python: 'a:b', mcp: { url: 'http://x' } }", "WF132", "both"),
        ("{ mcp: { } }", "WF132", "by a command or by a url"),
        ("{ mcp: { command: [a], url: 'http://x' } }", "WF132", "by a command or by a url"),
        ("{ mcp: { command: run } }", "WF107", "a program and its arguments"),
        ("{ mcp: { url: 'ftp://x' } }", "WF132", "http"),
        ("{ mcp: { url: 'http://x' }, parameters: { type: object } }", "WF132", "'parameters'"),
        ("{ python: 'a:b', only: [x] }", "WF132", "'only'"),
        ("{ workflow: nowhere.yaml }", "WF127", "not read from a file"),
        ("{ python: 'a:b', max_result: 0 }", "WF108", "at least 1"),
    ],
)
def test_a_broken_declaration_is_said(declaration: str, code: str, words: str) -> None:
    head = f"flowforge: 1\nname: t\ntools:\n  x: {declaration}\nsteps:\n"

    found = problems("  a: { set: 1 }\n", head)

    assert (code, True) in [(one, words in message) for one, message in found]


def test_the_tools_of_a_server_are_called_by_both_names() -> None:
    steps = "  a: { call: docs__search, with: { query: x } }\n"
    assert problems(steps + "outputs: { a: '${ a }' }\n") == []
    assert problems("  a: { call: docs }\n")[0][0] == "WF131"
    assert problems("  a: { call: add__x }\n")[0][0] == "WF131"


@pytest.mark.parametrize(
    ("verb", "code"),
    [
        ("call: nobody", "WF131"),
        ("call: docs", "WF131"),
        ("call: [add]", "WF107"),
        ("run: nowhere.yaml", "WF127"),
        ("run: [a]", "WF107"),
    ],
)
def test_arguments_are_checked_though_there_is_nothing_to_take_them(verb: str, code: str) -> None:
    step = f"  b: {{ {verb}, with: {{ x: '${{ topik }}', y: '${{ 1 + a }}' }} }}\n"

    found = problems(f"  a: {{ set: text }}\n{step}")

    assert code in [one for one, _ in found]
    assert ("WF202", "unknown name 'topik'") in found
    assert ("WF206", 'expected a number, got "text"') in found


def test_secrets_may_stand_in_arguments_of_a_tool_that_is_not_there() -> None:
    head = "flowforge: 1\nname: t\nsecrets: [KEY]\nsteps:\n"
    arguments = "with: { key: '${ secrets.KEY }' }"

    assert ["WF131"] == [code for code, _ in problems(f"  a: {{ call: x, {arguments} }}\n", head)]
    assert "WF141" in [code for code, _ in problems(f"  a: {{ run: x, {arguments} }}\n", head)]


def test_a_tool_name_leaves_the_mark_between_server_and_tool_alone() -> None:
    head = "flowforge: 1\nname: t\ntools: { a__b: { python: 'm:f' } }\nsteps:\n"

    assert "WF105" in [code for code, _ in problems("  a: { set: 1 }\n", head)]
