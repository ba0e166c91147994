"""The collected workflow cases about loading, checking and expressions; each test names its case.

Cases about a run are tested with the runtime. WF-049 to WF-051 need a journal, WF-062 and WF-064
secrets, WF-068 a context window: none of them is the language's.
"""

from __future__ import annotations

import json
import pathlib
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from flowforge.errors import WorkflowError
from flowforge.language.evaluation import evaluate_node
from flowforge.language.expression_parser import ExpressionSyntaxError, parse_expression
from flowforge.language.loader import load_text, require_program
from flowforge.language.program import Gen, Set
from flowforge.language.source import Source
from flowforge.language.yaml_document import read_document
from flowforge.language.yaml_nodes import value_of_node

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue

CASES = pathlib.Path(__file__).parent.parent / "cases" / "bank.jsonl"
BANK: dict[str, Any] = {
    case["id"]: case for case in map(json.loads, CASES.read_text("utf-8").splitlines())
}
HEAD = "flowforge: 1\nname: t\n"


def read(text: str) -> JsonValue:
    composed = read_document(Source("f.yaml", text))
    assert composed.root is not None, composed.diagnostics
    return value_of_node(composed.root)


def found(text: str) -> list[tuple[str, int, int]]:
    result = load_text(text, "f.yaml")
    return [(one.code, one.location.line, one.location.column) for one in result.diagnostics]


def prompt(text: str, inputs: dict[str, JsonValue]) -> str:
    """The text of a prompt whose inputs may be anything."""
    names = ", ".join(f"{name}: any" for name in inputs)
    block = text.replace("\n", "\n      ")
    file = f"{HEAD}inputs: {{ {names} }}\nsteps:\n  a:\n    gen:\n    user: |-\n      {block}\n"
    verb = require_program(load_text(file)).steps["a"].verb
    assert isinstance(verb, Gen)
    assert verb.user is not None
    return verb.user.render({"inputs": inputs})


@pytest.mark.parametrize("case", ["WF-001", "WF-002", "WF-006"])
def test_plain_scalars_are_what_yaml_1_2_says(case: str) -> None:
    expected = BANK[case]["expected"]["parsed"]

    value = read(BANK[case]["input"]["yaml"])

    assert expected == value
    assert json.dumps(expected) == json.dumps(value)


def test_wf_004_a_number_where_a_text_is_wanted_keeps_its_characters() -> None:
    inputs = "".join(
        f"  {name}: {{ type: string, default: {text} }}\n"
        for name, text in (("version", "1.10"), ("build", "007"), ("zip", "010"))
    )

    program = require_program(load_text(f"{HEAD}inputs:\n{inputs}steps: {{ a: {{ set: 1 }} }}\n"))

    assert ["1.10", "007", "010"] == [one.default for one in program.inputs.values()]


def test_wf_007_a_key_twice_names_both_lines() -> None:
    (diagnostic,) = read_document(Source("f.yaml", BANK["WF-007"]["input"]["yaml"])).diagnostics

    assert "key 'a' is written twice, on lines 2 and 4" == diagnostic.message


@pytest.mark.parametrize("which", ["yaml", "yaml2"])
def test_wf_009_unquoted_braces_are_explained(which: str) -> None:
    (diagnostic,) = read_document(Source("f.yaml", BANK["WF-009"]["input"][which])).diagnostics

    assert ("WF016", 1) == (diagnostic.code, diagnostic.location.line)
    assert diagnostic.help is not None
    assert "quote" in diagnostic.help


def test_wf_010_merge_keys_yield_to_own_keys_and_to_earlier_ones() -> None:
    value = read(BANK["WF-010"]["input"]["yaml"])

    expected = BANK["WF-010"]["expected"]
    assert isinstance(value, dict)
    assert (expected["d"], expected["e"]) == (value["d"], value["e"])


def test_wf_011_an_alias_bomb_is_refused_without_being_expanded() -> None:
    lines = ['l0: &a0 ["x","x","x","x","x","x","x","x","x"]']
    lines += [f"l{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    tracemalloc.start()

    codes = [code for code, _, _ in found("\n".join(lines) + "\n")]

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ["WF011"] == codes
    assert peak < 100_000_000


@pytest.mark.parametrize(
    ("case", "code", "text"),
    [
        ("WF-013", "WF012", "a: &a\n  b: *a\n"),
        ("WF-014", "WF010", "[" * 2000 + "]" * 2000),
        ("WF-016", "WF007", "a:\n\tb: 1\n"),
        ("WF-016", "WF007", "msg: key: value\n"),
        ("WF-069", "WF004", ""),
        ("WF-069", "WF004", "# only\n"),
        ("WF-069", "WF005", "- a\n"),
        ("WF-069", "WF006", "a: 1\n---\nb: 2\n"),
    ],
)
def test_a_broken_file_is_one_error_with_its_code(case: str, code: str, text: str) -> None:
    assert case in BANK
    assert [code] == [one for one, _, _ in found(text)][:1]


def test_wf_017_block_scalars_clip_strip_fold_and_keep() -> None:
    assert BANK["WF-017"]["expected"] == read(BANK["WF-017"]["input"]["yaml"])


def test_wf_018_a_space_before_a_hash_cuts_the_text_and_is_warned_of() -> None:
    expected = {key: BANK["WF-018"]["expected"][key] for key in ("m1", "m2", "m3")}
    steps = "steps:\n  a:\n    gen:\n    user: use tag #5 now\noutputs: { a: '${ a }' }\n"

    assert expected == read(BANK["WF-018"]["input"]["yaml"])
    assert [("WF018", 6, 19)] == found(HEAD + steps)


def test_wf_019_an_empty_prompt_is_an_error_and_never_the_text_none() -> None:
    assert "WF114" in [code for code, _, _ in found(HEAD + "steps: { a: { user: , gen: } }\n")]


def test_wf_021_a_step_that_needs_itself_is_refused() -> None:
    (diagnostic,) = load_text(HEAD + "steps: { a: { set: 1, after: a } }\n").diagnostics

    assert "step 'a' needs itself: a → a" == diagnostic.message


def test_wf_022_a_cycle_is_named_in_order() -> None:
    steps = (
        "steps:\n  a: { set: 1, after: c }\n  b: { set: 1, after: a }\n  c: { set: 1, after: b }\n"
    )

    (diagnostic,) = load_text(HEAD + steps).diagnostics

    path = diagnostic.message.removeprefix("steps wait for each other: ").split(" → ")
    assert path[0] == path[-1]
    assert "acb" in "".join(path[:-1]) * 2


def test_wf_024_an_unknown_step_is_an_error_with_the_near_miss() -> None:
    steps = "steps: { ghosts: { set: 1 }, b: { set: 1, after: ghost } }\n"

    (diagnostic,) = load_text(HEAD + steps).diagnostics

    assert ("WF137", "did you mean 'ghosts'?") == (diagnostic.code, diagnostic.help)
    assert "'ghost'" in diagnostic.message


def test_wf_025_an_unknown_input_is_named_before_anything_runs() -> None:
    text = (
        HEAD + "inputs: { topic: string }\nsteps: { a: { user: 'On ${ inputs.topik }', gen: } }\n"
    )

    (diagnostic,) = load_text(text).diagnostics

    assert ("WF203", "did you mean 'topic'?") == (diagnostic.code, diagnostic.help)
    assert "'inputs.topik'" in diagnostic.message


def test_wf_027_braces_of_json_examples_are_plain_text() -> None:
    assert 'Return {"name": "cat"} or 5} dollars' == prompt(
        'Return {"name": "${ inputs.s }"} or 5} dollars', {"s": "cat"}
    )


def test_wf_028_values_are_never_rendered_again() -> None:
    hostile = "${ inputs.b } {{ secrets.KEY }} {{ 7*7 }} <|im_end|> $${ x }"

    assert hostile == prompt("${ inputs.a }", {"a": hostile, "b": "B"})


@pytest.mark.parametrize(
    "text",
    ["''.__class__.__mro__", "cycler.__init__.__globals__", "inputs.__class__", "'x' | attr('y')",
     "'{0.__class__}'.format(1)", "inputs.d.update(1)", "inputs.l.append(1)", "len(inputs)"],
)  # fmt: skip
def test_wf_031_and_032_nothing_of_python_is_reached_or_changed(text: str) -> None:
    file = f'{HEAD}inputs: {{ d: object, l: array }}\nsteps: {{ a: {{ set: "${{ {text} }}" }} }}\n'
    inputs: dict[str, JsonValue] = {"d": {"a": 1}, "l": []}

    result = load_text(file)

    # An absent field of an object of any shape is null, whatever its name.
    if result.program is not None:
        verb = result.program.steps["a"].verb
        assert isinstance(verb, Set)
        assert verb.value.evaluate({"inputs": inputs}) is None
    assert {"d": {"a": 1}, "l": []} == inputs


def test_wf_034_fields_are_never_shadowed_by_methods() -> None:
    value: JsonValue = {"items": 5, "keys": 9, "values": "v", "get": "g"}

    assert "5|9|v|g" == prompt(
        "${ inputs.o.items }|${ inputs.o.keys }|${ inputs.o.values }|${ inputs.o.get }",
        {"o": value},
    )


@pytest.mark.parametrize("text", ["7", "007", "1_000", "None", '{"a": 1}', "[1]"])
def test_wf_035_a_text_stays_the_text_it_is(text: str) -> None:
    assert text == evaluate_node(parse_expression("x"), {"x": text})
    assert text * 2 == prompt("${ inputs.x }${ inputs.x }", {"x": text})


def test_wf_036_the_last_line_end_of_a_prompt_stays() -> None:
    file = (
        HEAD + "inputs: { x: string }\nsteps:\n  a:\n    gen:\n    user: |\n      ${ inputs.x }\n"
    )
    verb = require_program(load_text(file)).steps["a"].verb

    assert isinstance(verb, Gen)
    assert verb.user is not None
    assert "X\n" == verb.user.render({"inputs": {"x": "X"}})


def test_wf_070_names_stay_apart_or_are_refused() -> None:
    steps = "steps: { my-step: { set: 1 }, my_step: { set: 2 }, MY-STEP: { set: 3 } }\n"

    program = require_program(load_text(HEAD + steps))

    assert ["my-step", "my_step", "MY-STEP"] == list(program.steps)
    assert [("WF105", 3, 10)] == found(HEAD + "steps: { my step: { set: 1 } }\n")


def test_a_value_of_ten_million_characters_ends_in_an_error_and_not_in_a_wait() -> None:
    with pytest.raises(WorkflowError) as caught:
        prompt("${ inputs.x }", {"x": "x" * 10_000_000})

    assert "WF403" == caught.value.code
    with pytest.raises(ExpressionSyntaxError) as refused:
        parse_expression("'" + "x" * 10_000_000 + "'")
    assert "WF209" == refused.value.code
