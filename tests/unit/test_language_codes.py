"""Every code of the language is produced by a file or a call, at the place that is at fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.errors import WorkflowError
from flowforge.language.codes import CODES
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


# code, place, text. Places of expressions are on line 8, columns from 7.
FILES = [
    ("WF002", "1:4", "a: \x01"),
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
    ("WF011", "6:5", ALIAS_BOMB),
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
    ("WF100", "1:1", "name: t\n" + GEN),
    ("WF100", "1:1", "flowforge: 2\nname: t\n" + GEN),
    ("WF101", "4:17", HEAD + "steps:\n  a: {user: hi, uzer: hi, gen: }\n"),
    ("WF102", "4:8", HEAD + "steps:\n  a: { loop: 3 }\n"),
    ("WF102", "4:24", HEAD + "steps:\n  a: {user: hi, gen: , when: yes}\n"),
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
    ("WF201", "8:19", _expression("${ inputs.s = 1 }")),
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


def test_every_code_has_a_test() -> None:
    tested = {code for code, *_ in FILES} | {code for code, _ in GIVEN}
    tested |= {code for code, _ in EVALUATIONS} | {"WF001"}

    assert set(CODES) == tested
