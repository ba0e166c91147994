"""Every code of the language is produced by a file or a call, at the place that is at fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.errors import WorkflowError
from flowforge.language.checkers import Checkers
from flowforge.language.codes.explanations import families
from flowforge.language.inputs import resolve_inputs
from flowforge.language.loader import load, load_text, require_program
from flowforge.language.program import Gen, JsonValue

if TYPE_CHECKING:
    import pathlib

HEAD = "flowforge: 1\nname: t\n"
GEN = "steps:\n  a: { user: hi, gen: }\n"
ALIAS_BOMB = 'a0: &a0 ["x","x","x","x","x","x","x","x","x"]\n' + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


STRINGS = "{ l: { type: array, items: { type: string } } }"


def _expression(text: str, inputs: str = "{ s: string, n: number, l: array, o: object }") -> str:
    return f"{HEAD}inputs: {inputs}\nsteps:\n  a:\n    gen:\n    user: |\n      {text}\n"


TOOL = (
    "flowforge: 1\nname: t\ntools: { t: { python: 'm:f', parameters: { type: object, "
    "required: [year], properties: { year: { type: integer } } } } }\n"
)

WRITER = HEAD + "tools: { t: { python: 'm:f' } }\n"
LOOP = (
    HEAD
    + "steps:\n  l: {{ loop: {{ {} }}, max: {}, do: {{ {} }}, next: {{ {} }} }}\n"
    + ("outputs: {{ o: '${{ l.x }}' }}\n")
)

# code, place, text. Places of expressions are on line 8, columns from 7.
FILES = [
    ("WF002", "1:4", "a: \x01"),
    ("WF002", "1:4", 'x: "\\ud800"\n'),
    ("WF003", "1:1", "#" * 2_000_001),
    ("WF004", "1:1", "# only\n"),
    ("WF005", "1:1", "- a\n"),
    ("WF006", "2:1", "a: 1\n---\nb: 2\n"),
    ("WF007", "1:9", "msg: key: value\n"),
    ("WF007", "2:1", "a:\n\tb: 1\n"),
    ("WF007", "1:10", "while: > 3\nb: 1"),
    ("WF008", "3:1", "a: 1\nb: 2\na: 3"),
    ("WF009", "1:1", "null: 1"),
    ("WF010", "1:66", "[" * 2000 + "]" * 2000),
    ("WF011", "5:5", ALIAS_BOMB),
    ("WF012", "2:6", "a: &a\n  b: *a\n"),
    ("WF013", "1:4", "x: *y"),
    ("WF014", "1:5", "if: !done\n"),
    ("WF015", "1:4", "x: .inf\n"),
    ("WF015", "1:4", "x: " + "9" * 5000),
    ("WF016", "1:4", "p: {{ topic }}\n"),
    ("WF016", "1:4", "p: {{x}} tail\n"),
    ("WF016", "1:8", "with: {Local.Task}\n"),
    ("WF016", "1:11", "with: {q: ${ a }}\n"),
    ("WF017", "1:1", "<<: 3\n"),
    ("WF018", "4:24", HEAD + "steps:\n  a: {gen: , user: fix #42\n  }\n"),
    ("WF019", "4:21", HEAD + 'steps:\n  a: {gen: , user: "{{ topic }}"}\n'),
    ("WF019", "5:24", HEAD + "inputs: { topic: string }\nsteps:\n"
     '  a: {gen: , user: "On {inputs.topic} $${inputs.topic}"}\n'),
    ("WF100", "1:1", "name: t\n" + GEN),
    ("WF100", "1:1", "flowforge: 2\nname: t\n" + GEN),
    ("WF101", "4:17", HEAD + "steps:\n  a: {user: hi, uzer: hi, gen: }\n"),
    ("WF102", "4:25", HEAD + "steps:\n  a: { user: hi, gen: { logprobs: 2 } }\n"),
    ("WF103", "1:1", "flowforge: 1\n" + GEN),
    ("WF104", "4:14", HEAD + "steps:\n  a: { from: b, gen: }\n"),
    ("WF105", "4:3", HEAD + "steps:\n  a:b/../c: { user: x, gen: }\n"),
    ("WF106", "5:14", HEAD + GEN + "  b: { for: 'a in [1]', do: { c: { user: x, gen: } } }\n"),
    ("WF107", "3:8", HEAD + "steps: []\n"),
    ("WF108", "4:36", HEAD + "steps:\n  a: { user: x, gen: { max_tokens: 0 } }\n"),
    ("WF109", "4:8", HEAD + "steps:\n  a: { gne: }\n"),
    ("WF110", "4:23", HEAD + "steps:\n  a: {user: x, gen: , for: 1}\n"),
    ("WF111", "5:14", HEAD + "steps:\n  b: { for: 'x in [1]', do: { c: { user: x, gen: } } }\n"
     "  a: { from: b, gen: }\n"),
    ("WF112", "5:17", HEAD + GEN + "  b: { from: a, system: x, gen: }\n"),
    ("WF113", "4:8", HEAD + "steps:\n  a: { gen: }\n"),
    ("WF114", "4:8", HEAD + "steps:\n  a: { user: , gen: }\n"),
    ("WF114", "4:14", HEAD + "steps:\n  a: { user: ~, gen: }\n"),
    ("WF115", "4:25", HEAD + 'steps:\n  a: { gen: , user: "${ a }" }\n'),
    ("WF116", "4:25", HEAD + "steps:\n  b: { for: 'x in [1]', do: "
     "{ c: { user: x, gen: }, d: { user: x, gen: } } }\n"),
    ("WF117", "3:40", HEAD + "inputs: { n: { type: integer, default: x } }\n" + GEN),
    ("WF118", "3:14", HEAD + "inputs: { s: strng }\n" + GEN),
    ("WF118", "3:44", HEAD + "inputs: { s: { type: array, items: { type: strng } } }\n" + GEN),
    ("WF119", "4:38", HEAD + "steps:\n  a: { user: x, gen: { json: { type: arrya } } }\n"),
    ("WF120", "4:33", HEAD + "steps:\n  a: {user: hi, gen: , timeout: 30}\n"),
    ("WF120", "4:33", HEAD + "steps:\n  a: {user: hi, gen: , timeout: 3 weeks}\n"),
    ("WF121", "4:8", HEAD + "steps:\n  a: { loop: {x: 1}, do: { b: { set: 1 } }, "
     "next: { x: 2 } }\n"),
    ("WF122", "4:61", HEAD + "steps:\n  a: { loop: {x: 1}, max: 3, do: { b: { set: 1 } }, "
     "next: { y: 2 } }\n"),
    ("WF123", "5:8", HEAD + "steps:\n  a: { user: hi, gen: { choice: [p, q] } }\n"
     "  b: { switch: '${ a }', cases: { p: { x: { set: 1 } } } }\n"),
    ("WF123", "5:8", HEAD + GEN + "  b: { switch: '${ a }', cases: { p: { x: { set: 1 } } } }\n"),
    ("WF124", "5:61", HEAD + "steps:\n  a: { user: hi, gen: { choice: [pp, qq] } }\n"
     "  b: { switch: '${ a }', default: { x: {set: 1} }, cases: { pq: { x: { set: 1 } } } }\n"),
    ("WF127", "4:13", HEAD + "steps:\n  a: { run: other.yaml }\n"),
    ("WF128", "5:28", TOOL + "steps:\n  a: { call: t, with: { x: 1, yeer: 2 } }\n"),
    ("WF129", "5:8", TOOL + "steps:\n  a: { call: t }\n"),
    ("WF130", "5:31", TOOL + "steps:\n  a: { call: t, with: { year: new } }\n"),
    ("WF131", "5:14", TOOL + "steps:\n  a: { call: tt }\n"),
    ("WF132", "3:23", HEAD + "tools: { t: { python: tools } }\n" + GEN),
    ("WF133", "4:39", HEAD + "steps:\n  a: { user: hi, gen: { json: string, choice: [a] } }\n"),
    ("WF133", "4:18", HEAD + "steps:\n  a: { user: hi, prefill: x, gen: { choice: [a] } }\n"),
    ("WF134", "4:32", HEAD + "steps:\n  a: { user: hi, gen: { regex: '[a' } }\n"),
    ("WF134", "4:32", HEAD + "steps:\n  a: { user: hi, gen: { regex: '(?=a)b' } }\n"),
    ("WF135", "3:10", HEAD + "types: { A: { type: array, items: { $ref: '#/types/A' } } }\n" + GEN),
    ("WF136", "4:25", HEAD + "steps:\n  a: { user: hi, gen: { n: 5 } }\n"),
    ("WF136", "4:25", HEAD + "steps:\n  a: { user: hi, gen: { pick: all } }\n"),
    ("WF137", "4:23", HEAD + "steps:\n  a: { set: 1, after: b }\n"),
    ("WF138", "4:43", HEAD + "steps:\n  a: { ask: ok?, timeout: 2h, on_timeout: no, "
     "choices: [yes] }\n"),
    ("WF138", "4:18", HEAD + "steps:\n  a: { ask: ok?, on_timeout: no }\n"),
    ("WF139", "5:40", HEAD + GEN + "  b: { from: a, user: x, gen: , model: m }\n"),
    ("WF140", "4:24", WRITER + "steps: { a: { call: t, cache: true } }\n"),
    ("WF141", "4:24", HEAD + "secrets: [KEY]\nsteps: { a: { set: '${ secrets.KEY }' } }\n"),
    ("WF144", "3:26", HEAD + "models: { m: { url: 'x', nme: y } }\nsteps: { a: { set: 1 } }\n"),
    ("WF150", "4:25", LOOP.format("x: 1, y: 2", 3, "b: { set: '${ x }' }", "x: '${ b }'")),
    ("WF151", "5:3", WRITER + "steps: { a: { call: t },\n  b: { call: t } }\n"),
    ("WF152", "4:3", HEAD + "steps:\n  a: { user: hi, gen: }\n  b: { user: hi, gen: }\n"
     "outputs: { o: '${ b }' }\n"),
    ("WF153", "4:74", LOOP.format("x: a", 30, "b: { set: '${ x }' }", "x: '${ x } and ${ b }'")),
    ("WF154", "5:5", HEAD + "steps:\n  a: { switch: true, cases: { true: { b: { set: 1 } }, "
     "false: { b: { set: 2 } } },\n    default: { c: { set: 1 } } }\n"),
    ("WF155", "4:41", HEAD + "steps:\n  a: { user: hi, gen: { temperature: 0, n: 2, "
     "pick: all } }\n"),
    ("WF156", "4:3", HEAD + "steps:\n  a: { set: 1 }\n"),
    ("WF157", "4:25", HEAD + "steps:\n  a: { user: hi, gen: { json: string } }\n"),
    ("WF158", "6:26", HEAD + "steps:\n  a:\n    for: x in [1, 2]\n    do: { b: { user: '${ x }"
     + "; mind " * 40 + "', gen: } }\n"),
    ("WF201", "8:19", _expression("${ inputs.s = 1 }")),
    ("WF201", "8:10", _expression('${ "\\ud800" }')),
    ("WF202", "8:10", _expression("${ input.s }")),
    ("WF203", "8:17", _expression("${ inputs.z }")),
    ("WF204", "8:21", _expression("${ inputs.l | joyn }")),
    ("WF205", "8:21", _expression("${ inputs.n | join }")),
    ("WF206", "8:10", _expression("${ inputs.n < inputs.s }")),
    ("WF206", "8:10", _expression("${ inputs.n and true }")),
    ("WF207", "8:7", _expression("${ inputs.n")),
    ("WF207", "8:9", _expression("${ }")),
    ("WF208", "8:10", _expression("${ inputs.l | first }", STRINGS)),
    ("WF209", "8:9", _expression("${ " + "not " * 100 + "true }")),
    ("WF210", "4:25", HEAD + "inputs: { n: number }\nsteps: { b: { for: x in inputs.n, do: "
     "{ c: { user: x, gen: } } } }\n"),
    ("WF211", "3:26", HEAD + 'steps: { b: { for: "x in ${ [1] } y", do: '
     "{ c: { user: x, gen: } } } }\n"),
    ("WF212", "8:10", _expression("${ inputs.n == inputs.s }")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "place", "text"), FILES, ids=[f"{c}-{p}" for c, p, _ in FILES])
def test_a_problem_is_reported_with_its_code_and_place(code: str, place: str, text: str) -> None:
    result = load_text(text, "f.yaml")

    found = [(one.code, f"{one.location.line}:{one.location.column}") for one in result.diagnostics]
    assert (code, place) in found


def test_a_subflow_lies_in_the_folder_and_does_not_run_itself(tmp_path: pathlib.Path) -> None:
    """WF-065, WF-066."""
    (tmp_path / "flows" / "sub").mkdir(parents=True)
    outside = tmp_path / "x.yaml"
    outside.write_text(HEAD + "steps: { a: { set: secret } }\n")
    folder = tmp_path / "flows"
    (folder / "link.yaml").symlink_to(outside)
    (folder / "sub" / "ok.yaml").write_text(
        HEAD + "steps: { a: { set: 1 } }\noutputs: { a: '${ a }' }\n"
    )

    def codes(path: str) -> list[tuple[str, str]]:
        text = f"{HEAD}steps:\n  a:\n    run: {path}\noutputs: {{ a: '${{ a }}' }}\n"
        (folder / "main.yaml").write_text(text)
        return [(one.code, one.message) for one in load(folder / "main.yaml").diagnostics]

    for path in ("../x.yaml", "/etc/passwd", "sub/../../x.yaml", "link.yaml", "..\\x.yaml"):
        assert codes(path) == [("WF125", f"{path!r} is outside the workflow folder")]
    assert codes("sub/ok.yaml") == []
    assert codes("none.yaml")[0][0] == "WF127"
    assert codes("main.yaml") == [("WF126", "the workflow runs itself: main.yaml → main.yaml")]


def test_workflows_that_run_each_other_are_a_cycle_with_all_its_files(
    tmp_path: pathlib.Path,
) -> None:
    """WF-066."""
    for one, other in (("a", "b"), ("b", "c"), ("c", "a")):
        text = f"{HEAD}steps:\n  s:\n    run: ./{other}.yaml\n"
        (tmp_path / f"{one}.yaml").write_text(text)

    diagnostics = load(tmp_path / "a.yaml").diagnostics

    assert ["WF127", "WF127", "WF126"] == [one.code for one in diagnostics][:1] + [
        one.code for one in diagnostics if one.location.file != str(tmp_path / "a.yaml")
    ][::-1]
    cycle = next(one.message for one in diagnostics if one.code == "WF126")
    assert cycle == "the workflow runs itself: a.yaml → b.yaml → c.yaml → a.yaml"


def test_an_unreadable_file_is_a_diagnostic(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path / "none.yaml").diagnostics[0].code == "WF001"
    assert load(tmp_path).diagnostics[0].code == "WF001"


def test_a_file_that_is_not_utf_8_names_the_byte_and_its_place(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: 1\nb: caf\xe9\n")

    diagnostic = load(path).diagnostics[0]

    assert (diagnostic.code, diagnostic.location.line, diagnostic.location.column) == (
        "WF002",
        2,
        7,
    )
    assert "0xe9" in diagnostic.message


INPUTS = HEAD + "inputs: { topic: string, n: integer }\n" + GEN
GIVEN: list[tuple[str, dict[str, JsonValue]]] = [
    ("WF301", {"topic": "x"}),
    ("WF302", {"topic": "x", "n": 1, "topik": "y"}),
    ("WF303", {"topic": "x", "n": "three"}),
    ("WF303", {"topic": 3, "n": 1}),
    ("WF303", {"topic": "x", "n": 1.5}),
]


@pytest.mark.parametrize(("code", "given"), GIVEN)
def test_wrong_inputs_are_refused(code: str, given: dict[str, JsonValue]) -> None:
    program = require_program(load_text(INPUTS))

    with pytest.raises(WorkflowError) as caught:
        resolve_inputs(program, given)

    assert caught.value.code == code


EVALUATIONS = [
    ("WF401", "${ inputs.o.absent }"),
    ("WF402", "${ inputs.l[5] }"),
    ("WF403", "${ inputs.long }${ inputs.long }${ inputs.long }"),
    ("WF404", "${ inputs.x | upper }"),
    ("WF404", "${ inputs.x < 'a' }"),
    ("WF404", "${ not inputs.x }"),
    ("WF405", "${ 1 / (inputs.x - 3) }"),
    ("WF406", "${ inputs.long | truncate_tokens(3) }"),
]


@pytest.mark.parametrize(("code", "text"), EVALUATIONS)
def test_a_value_that_does_not_fit_is_an_error_with_a_place(code: str, text: str) -> None:
    types = "{ o: object, l: array, long: string, x: any }"
    program = require_program(load_text(_expression(text, types)))
    inputs: dict[str, JsonValue] = {"o": {}, "l": [1], "long": "x" * 3_000_000, "x": 3}
    verb = program.steps["a"].verb
    assert isinstance(verb, Gen)
    assert verb.user is not None

    with pytest.raises(WorkflowError) as caught:
        verb.user.render({"inputs": inputs})

    assert caught.value.code == code
    assert caught.value.location is not None
    assert caught.value.location.line == 8


def test_a_model_of_another_server_is_declared_in_the_file_or_beside_it() -> None:
    text = HEAD + "models: { big: { url: 'http://h/v1' } }\nsteps:\n"
    text += "".join(
        f"  {name}: {{ user: x, gen: , model: {model} }}\n"
        for name, model in (("a", "remote/big"), ("b", "route/main"), ("c", "remote/bg"))
    )

    known = load_text(text, checkers=Checkers(models=frozenset({"route/main"})))
    unchecked = load_text(text)

    problems = [(one.code, str(one.location.line)) for one in known.diagnostics]
    assert ("WF145", "7") in problems
    assert 1 == sum(code == "WF145" for code, _ in problems)
    assert "did you mean 'remote/big'?" in [one.help for one in known.diagnostics]
    assert "WF145" not in {one.code for one in unchecked.diagnostics}


def test_every_code_of_the_language_has_a_test() -> None:
    tested = {code for code, *_ in FILES} | {code for code, _ in GIVEN}
    tested |= {code for code, _ in EVALUATIONS} | {"WF001", "WF125", "WF126", "WF145"}

    ours = [family for family in families() if family.prefix in {"WF0", "WF1", "WF2"}]
    assert {one.code for family in ours for one in family.explanations} <= tested
