"""The collected YAML and template cases, in the language's own words."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from flowforge.errors import WorkflowError
from flowforge.language.checkers import Checkers
from flowforge.language.evaluation import evaluate_node
from flowforge.language.expression_parser import parse_expression
from flowforge.language.inputs import resolve_inputs
from flowforge.language.json_values import EvaluationError
from flowforge.language.loader import LoadResult, load_text, require_program
from flowforge.language.program import ForEach, Gen, JsonValue
from flowforge.language.schemas import SchemaProblem
from flowforge.language.source import Source
from flowforge.language.types import display_type
from flowforge.language.yaml_composer import compose
from flowforge.language.yaml_nodes import value_of_node

CASES = pathlib.Path(__file__).parent.parent / "cases" / "yaml"
HEAD = "flowforge: 1\nname: t\n"


def _value(text: str) -> JsonValue:
    composed = compose(Source("f.yaml", text))
    assert composed.root is not None, composed.diagnostics
    return value_of_node(composed.root)


def _file(name: str) -> JsonValue:
    return _value((CASES / name).read_text(encoding="utf-8"))


def _messages(result: LoadResult) -> list[str]:
    return [one.message for one in result.diagnostics]


def test_on_and_yes_are_texts_as_keys() -> None:
    value = _file("y01_on_key.yaml")

    assert isinstance(value, dict)
    assert list(value) == ["name", "on", "yes", "steps"]
    assert (value["on"], value["yes"]) == ("manual", 1)


def test_country_codes_stay_texts() -> None:
    value = _file("y02_countries.yaml")

    expected: JsonValue = ["SE", "NO", "DK", "no", "Yes", "y", "n", "off", "ON"]
    assert isinstance(value, dict)
    assert isinstance(value["steps"], list)
    assert isinstance(value["steps"][0], dict)
    assert value["steps"][0]["foreach"] == expected


def test_numbers_are_what_the_core_schema_says() -> None:
    value = _file("y03_numbers.yaml")

    assert isinstance(value, dict)
    assert value["inputs"] == {
        "window": "22:22",
        "port": "2122:22",
        "zip": 10,
        "mode": 15,
        "rate": 0.001,
        "big": "1_000",
        "sci": 1000.0,
    }


def test_a_duplicate_key_names_both_lines() -> None:
    composed = compose(Source("f", (CASES / "y04_duplicate.yaml").read_text(encoding="utf-8")))

    expected = ["key 'prompt' is written twice, on lines 3 and 4"]
    assert [one.message for one in composed.diagnostics] == expected


def test_block_scalars_clip_strip_fold_keep_and_indent() -> None:
    value = _file("y06_blocks.yaml")

    assert isinstance(value, dict)
    assert isinstance(value["steps"], list)
    prompts = [step["prompt"] for step in value["steps"] if isinstance(step, dict)]
    expected = [
        "one\ntwo\n",
        "one\ntwo",
        "one two\nthree\n",
        "one\n\n",
        "    four\ntwo\n",
        "fix bug",
    ]
    assert prompts == expected


def test_cycles_self_references_and_unknown_names_are_all_reported() -> None:
    steps = "".join(
        f'  {name}: {{ gen: , user: "${{ {needed} }}" }}\n'
        for name, needed in (("a", "c"), ("b", "a"), ("c", "b"), ("d", "d"), ("e", "ghost"))
    )

    messages = _messages(load_text(f"{HEAD}steps:\n{steps}"))

    assert messages == [
        "steps wait for each other: a → c → b → a",
        "step 'd' needs itself: d → d",
        "unknown name 'ghost'",
    ]


def test_a_step_may_stand_before_the_one_it_needs() -> None:
    text = (
        f"{HEAD}steps:\n"
        '  d: { gen: , user: "${ b }${ c }" }\n'
        '  c: { gen: , user: "${ a }2" }\n'
        '  b: { gen: , user: "${ a }1" }\n'
        "  a: { gen: , user: x }\n"
    )

    program = require_program(load_text(text))

    needs = {name: set(step.needs) for name, step in program.steps.items()}
    assert needs == {"d": {"b", "c"}, "c": {"a"}, "b": {"a"}, "a": set()}


def test_odd_names_and_empty_prompts_are_refused_and_odd_texts_kept() -> None:
    text = (
        f"{HEAD}steps:\n"
        '  "步骤": { gen: , user: ~ }\n'
        '  null: { gen: , user: "null" }\n'
        "  2024-10-01: { gen: , user: it's a }\n"
        '  "a:b/../c": { gen: , user: "tab\\tand \\U0001F44D" }\n'
    )

    codes = [(one.code, one.location.line) for one in load_text(text).diagnostics]

    assert codes == [("WF114", 4), ("WF009", 5), ("WF105", 6), ("WF105", 7)]


def test_names_that_differ_only_in_case_or_dashes_stay_apart() -> None:
    steps = "".join(
        f"  {name}: {{ gen: , user: x }}\n" for name in ("my-step", "my_step", "MY-STEP")
    )

    program = require_program(load_text(f"{HEAD}steps:\n{steps}"))

    assert list(program.steps) == ["my-step", "my_step", "MY-STEP"]


def test_merge_keys_yield_to_own_keys_and_to_earlier_ones() -> None:
    value = _value("b: &b {t: 1, k: 2}\nc: &c {t: 9}\nd:\n  <<: *b\n  t: 3\ne:\n  <<: [*b, *c]\n")

    assert isinstance(value, dict)
    assert (value["d"], value["e"]) == ({"t": 3, "k": 2}, {"t": 1, "k": 2})


def test_a_number_where_a_text_is_declared_keeps_its_characters() -> None:
    text = (
        "flowforge: 1\nname: 1.10\n"
        "inputs:\n  zip: { type: string, default: 010 }\n"
        "  zips: { type: array, items: { type: string }, default: [007, 1e3, no] }\n"
        "  pick: { type: string, enum: [1.10, 2.0], default: 1.10 }\n"
        "steps:\n  a: { user: 010, gen: }\n"
    )

    program = require_program(load_text(text))

    assert program.name == "1.10"
    defaults = {name: one.default for name, one in program.inputs.items()}
    assert defaults == {"zip": "010", "zips": ["007", "1e3", "no"], "pick": "1.10"}
    verb = program.steps["a"].verb
    assert isinstance(verb, Gen)
    assert verb.user is not None
    assert verb.user.render({}) == "010"


TEMPLATES = [
    json.loads(line)
    for line in (CASES / "templates.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("case", TEMPLATES, ids=[case["id"] for case in TEMPLATES])
def test_template_case(case: dict[str, JsonValue]) -> None:
    source = re.sub(r"\{\{(.*?[^{])\}\}", r"${\1}", str(case["template"]))
    values = case["vars"]
    assert isinstance(values, dict)
    inputs = values.get("inputs", {})
    assert isinstance(inputs, dict)
    declared = json.dumps(dict.fromkeys(inputs, "any"))
    text = f"{HEAD}inputs: {declared}\nsteps:\n  a:\n    gen:\n    user: {json.dumps(source)}\n"

    result = load_text(text)

    if not str(case["expected"]).startswith("ERROR"):
        verb = require_program(result).steps["a"].verb
        assert isinstance(verb, Gen)
        assert verb.user is not None
        assert verb.user.render({"inputs": inputs}) == case["expected"]
    elif result.program is not None:
        verb = result.program.steps["a"].verb
        assert isinstance(verb, Gen)
        assert verb.user is not None
        with pytest.raises(WorkflowError):
            verb.user.render({"inputs": inputs})


EVALUATED = [
    ("x.items", {"x": {"items": 5}}, 5),
    ("x.keys", {"x": {}}, None),
    ("x.in", {"x": {"in": 1}}, 1),
    ("x ?? 'none'", {"x": None}, "none"),
    ("x.y ?? 'none' | upper", {"x": {}}, "NONE"),
    ("(x ?? 'none') | upper", {"x": "a"}, "A"),
    ("1 == true", {}, False),
    ("1 == 1.0", {}, True),
    ("[1, [true]] == [1.0, [1]]", {}, False),
    ("2 in l and not ('a' in 'cat')", {"l": [1, 2]}, False),
    ("'no' if x > 1 else 'yes'", {"x": 1}, "yes"),
    ("l[-1]", {"l": [1, 2]}, 2),
    ("l | bullets", {"l": ["a\nb", 1]}, "- a\n  b\n- 1"),
    ("'a\\nb\\n' | lines", {}, ["a", "b"]),
    ("l | join(', ')", {"l": ["a", 2.5, True]}, "a, 2.5, true"),
    ("o | json", {"o": {"a": [None, "é"]}}, '{"a": [null, "é"]}'),
    ("o | keys | join", {"o": {"a": 1, "b": 2}}, "ab"),
    ("o | values | len", {"o": {"a": 1, "b": 2}}, 2),
    ("l | first | default(3)", {"l": []}, 3),
    ("' A ' | trim | lower", {}, "a"),
    ("'a,b' | split(',') | last", {}, "b"),
    ("not-a-word", {"not-a-word": 1}, 1),
]


@pytest.mark.parametrize(("text", "scope", "expected"), EVALUATED)
def test_an_expression_has_its_value(
    text: str, scope: dict[str, JsonValue], expected: JsonValue
) -> None:
    value = evaluate_node(parse_expression(text), scope)

    assert (type(value), value) == (type(expected), expected)


def test_values_are_never_read_again_as_templates() -> None:
    step = '{ gen: , user: "$${x} ${ inputs.q }" }'
    text = f"{HEAD}inputs: {{ q: string }}\nsteps: {{ a: {step} }}\n"
    verb = require_program(load_text(text)).steps["a"].verb

    assert isinstance(verb, Gen)
    assert verb.user is not None
    parts = verb.user.render_parts({"inputs": {"q": "${ inputs.q }"}})
    assert parts == (("${x} ", False), ("${ inputs.q }", True))


def test_deep_values_end_in_an_error_and_not_in_a_recursion_error() -> None:
    deep: JsonValue = []
    for _ in range(5_000):
        deep = [deep]
    other: JsonValue = []
    for _ in range(5_000):
        other = [other]

    with pytest.raises(EvaluationError):
        evaluate_node(parse_expression("a == b"), {"a": deep, "b": other})


def test_types_are_inferred_through_loops_and_fields() -> None:
    text = (
        f"{HEAD}steps:\n"
        "  a: { user: x, gen: { json: { type: object, required: [ok],"
        " properties: { ok: { type: boolean },"
        " l: { type: array, items: { type: integer } } } } } }\n"
        "  b: { for: n in a.l ?? [], do: { c: { from: a, user: go, gen: } } }\n"
        "outputs: { ok: '${ a.ok }', l: '${ a.l }', b: '${ b }', text: 'ok ${ a.ok }' }\n"
    ).replace("for: n in a.l ?? [],", 'for: "n in a.l ?? []",')

    program = require_program(load_text(text))

    types = [display_type(one.value.type) for one in program.outputs.values()]
    assert types == ["boolean", "array<integer> | null", "array<string>", "string"]
    verb = program.steps["b"].verb
    assert isinstance(verb, ForEach)
    assert program.steps["b"].needs == {"a"}
    scope: dict[str, JsonValue] = {"a": {"ok": True}}
    assert program.outputs["text"].value.evaluate(scope) == "ok true"
    assert program.outputs["ok"].value.evaluate(scope) is True


def test_a_broken_step_is_reported_once_and_not_at_its_users() -> None:
    text = (
        f'{HEAD}steps:\n  a: {{ gne: }}\n  b: {{ from: a, user: "${{ a.x.y | upper }}", gen: }}\n'
    )

    assert ["WF109"] == [one.code for one in load_text(text).diagnostics]


def test_a_schema_problem_is_placed_by_its_pointer() -> None:
    gen = "gen:\n      json:\n        items: { minLength: -1 }"
    text = f"{HEAD}steps:\n  a:\n    user: x\n    {gen}\n"

    result = load_text(
        text, checkers=Checkers(lambda _, __: [SchemaProblem("/items/minLength", "bad")])
    )

    diagnostic = result.diagnostics[0]
    assert (diagnostic.code, diagnostic.location.line, diagnostic.location.column) == (
        "WF119",
        8,
        29,
    )


def test_inputs_from_a_command_line_are_read_by_their_types() -> None:
    text = (
        f"{HEAD}inputs: {{ s: string, n: integer, l: array, d: {{ type: string, default: x }} }}\n"
        "steps: { a: { user: hi, gen: } }\n"
    )
    program = require_program(load_text(text))

    values = resolve_inputs(program, {"s": "007", "n": "3", "l": '["a"]'})

    assert values == {"s": "007", "n": 3, "l": ["a"], "d": "x"}


def test_a_text_of_very_many_holes_is_refused_quickly() -> None:
    holes = "${ inputs.s }" * 20_000
    text = f"{HEAD}inputs: {{ s: string }}\nsteps: {{ a: {{ gen: , user: '{holes}' }} }}\n"

    assert ["WF209"] == [one.code for one in load_text(text).diagnostics]


def test_a_step_inside_a_block_is_not_seen_outside_and_the_help_says_so() -> None:
    text = (
        f"{HEAD}steps:\n"
        "  b: { for: 'x in [1]', do: { c: { user: x, gen: } } }\n"
        "  d: { from: c, gen: }\n"
    )

    diagnostic = load_text(text).diagnostics[0]

    assert (diagnostic.code, diagnostic.help) == ("WF104", "it is inside 'b', and seen only there")
