"""What is made from the code for readers and editors: reference pages, JSON Schema, graphs."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import jsonschema
import pytest
from click.testing import CliRunner

from flowforge.cli.app import app
from flowforge.language.common_keys import COMMON_KEYS
from flowforge.language.editor_schema import editor_schema
from flowforge.language.graph import dot_of, graph_of, mermaid_of, text_of_graph
from flowforge.language.loader import load_text, require_program
from flowforge.language.source import Source
from flowforge.language.steps import VERBS
from flowforge.language.yaml_composer import compose
from flowforge.language.yaml_nodes import value_of_node

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue

ROOT = pathlib.Path(__file__).parent.parent.parent
HEAD = "flowforge: 1\nname: t\n"
EVERY_VERB = pathlib.Path(__file__).parent.parent / "cases" / "workflows" / "every_verb.yaml"


def _value(text: str) -> JsonValue:
    root = compose(Source("f.yaml", text)).root
    assert root is not None
    return value_of_node(root)


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "workflows").rglob("*.yaml")), EVERY_VERB], ids=lambda path: path.name
)
def test_a_workflow_satisfies_the_editor_schema(path: pathlib.Path) -> None:
    schema = editor_schema()
    jsonschema.Draft202012Validator.check_schema(schema)

    errors = [
        *jsonschema.Draft202012Validator(schema).iter_errors(
            _value(path.read_text(encoding="utf-8"))
        )
    ]

    assert [error.message for error in errors] == []


@pytest.mark.parametrize(
    "text",
    [
        "steps: { a: { user: hi, gen: , limt: 3 } }",
        "steps: { a: { gen: , set: 1 } }",
        "steps: { a: { user: hi } }",
        "steps: { a: { loop: { x: 1 }, do: { b: { set: 1 } }, next: { x: 2 } } }",
        "steps: { a: { set: 1, timeout: 30 } }",
        "step: { a: { set: 1 } }",
        "steps: { 'a b': { set: 1 } }",
        "steps: { a: { user: hi, gen: { json: { type: strng } } } }",
        "steps: { a: { user: hi, gen: { json: { type: array, items: { type: strng } } } } }",
        "steps: { a: { user: hi, gen: { json: { anyOf: [{ type: int }] } } } }",
        "steps: { a: { user: hi, gen: { json: { type: [string, null] } } } }",
        "steps: { a: { user: hi, gen: { json: { properties: { b: string } } } } }",
        "types: { T: { properties: { b: { type: strng } } } }\nsteps: { a: { set: 1 } }",
        "inputs: { i: { type: array, items: { type: strng } } }\nsteps: { a: { set: 1 } }",
        "inputs: { i: { type: [strng] } }\nsteps: { a: { set: 1 } }",
        "tools: { t: { python: 'm:f', returns: { type: strng } } }\nsteps: { a: { set: 1 } }",
    ],
)
def test_the_editor_schema_refuses_what_check_refuses(text: str) -> None:
    assert load_text(HEAD + text).program is None

    validator = jsonschema.Draft202012Validator(editor_schema())
    assert not validator.is_valid(_value(HEAD + text))


@pytest.mark.parametrize(
    "text",
    [
        "steps: { a: { user: hi, gen: { json: { type: [string, 'null'], enum: [strng] } } } }",
        "types: { T: { type: string } }\nsteps: { a: { user: hi, gen: { json: T } } }",
        "types: { T: { type: string } }\ninputs: { i: { type: T } }\nsteps: { a: { set: 1 } }",
        "inputs: { i: { type: any, default: 1 } }\nsteps: { a: { set: 1 } }",
        "inputs: { i: { type: object, properties: { type: true } } }\nsteps: { a: { set: 1 } }",
    ],
)
def test_the_editor_schema_takes_types_as_check_does(text: str) -> None:
    assert load_text(HEAD + text).program is not None

    validator = jsonschema.Draft202012Validator(editor_schema())
    assert [] == [error.message for error in validator.iter_errors(_value(HEAD + text))]


def test_the_editor_schema_knows_every_key_of_every_verb() -> None:
    definitions = editor_schema()["$defs"]
    assert isinstance(definitions, dict)

    for verb, rule in VERBS.items():
        definition = definitions[verb]
        assert isinstance(definition, dict)
        properties = definition["properties"]
        assert isinstance(properties, dict)
        assert {*rule.keys, *COMMON_KEYS} == set(properties)


GRAPHED = (
    HEAD
    + """steps:
  a: { user: hi, gen: { choice: [x, "y|\\"<z>"] } }
  b:
    for: n in [1, 2]
    do: { c: { from: a, user: "${ n }", gen: } }
  d: { set: "${ b | len }", when: "${ a == 'x' }" }
  e: { parallel: { p: { set: 1 }, q: { set: 2 } }, after: d }
"""
)


def test_a_tree_of_text_shows_steps_with_their_sources_and_types() -> None:
    graph = graph_of(require_program(load_text(GRAPHED)))

    assert text_of_graph(graph) == (
        "t\n"
        '├─ a: gen choice  → "x" | "y|\\"<z>"\n'
        "├─ b: for n in [1, 2]  → array<string>\n"
        "│  └─ c: gen  ← from a  → string\n"
        "├─ d: set when a == 'x'  ← a, b  → integer | null\n"
        "└─ e: parallel  ← after d  → {p: integer, q: integer}\n"
        "   ├─ p: set  → integer\n"
        "   └─ q: set  → integer\n"
    )


def test_mermaid_and_dot_say_which_edges_pass_conversations() -> None:
    graph = graph_of(require_program(load_text(GRAPHED)))

    mermaid, dot = mermaid_of(graph), dot_of(graph)

    assert {"n0 ==> n4", "n0 --> n2", "n1 --> n2", "n2 -.-> n3"} <= {
        line.strip() for line in mermaid.splitlines()
    }
    assert "n0 -> n4 [style=bold];" in dot
    assert "n2 -> n3 [style=dotted];" in dot


def test_no_text_of_a_workflow_breaks_out_of_a_label() -> None:
    step = """{ set: true, when: "${ 'x\\"]; end' == inputs.s }" }"""
    text = f"{HEAD}inputs: {{ s: string }}\nsteps: {{ a: {step} }}\n"
    graph = graph_of(require_program(load_text(text)))

    assert mermaid_of(graph).count('"') == 2
    assert '\\"]; end' in dot_of(graph)


def test_graph_and_schema_are_commands(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(GRAPHED)
    broken = tmp_path / "broken.yaml"
    broken.write_text(HEAD)

    runner = CliRunner()
    drawn = runner.invoke(app, ["graph", str(path), "--format", "mermaid"])
    as_json = runner.invoke(app, ["graph", str(path), "--json"])
    refused = runner.invoke(app, ["graph", str(broken)])
    schema = runner.invoke(app, ["schema"])

    assert (drawn.exit_code, drawn.stdout.splitlines()[0]) == (0, "flowchart TD")
    assert '"kind": "conversation"' in as_json.stdout
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert "WF103" in refused.stderr
    assert (schema.exit_code, schema.stdout[0]) == (0, "{")
