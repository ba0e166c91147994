"""A schema that is taken as valid, or as compiling, at a glance is so."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from flowforge.grammars.json_grammar import json_grammars
from flowforge.grammars.plain_schemas import is_sure_to_compile
from flowforge.grammars.schema_check import is_plainly_valid

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([1.5, -0.5, "a", "string"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)
WORDS = st.sampled_from(["string", "integer", "array", "object", "strng"])


def _schemas(inner: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": WORDS | JSON,
            "items": inner,
            "additionalProperties": inner,
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2) | JSON,
            "required": st.lists(st.sampled_from("ab"), max_size=3) | JSON,
            "enum": JSON,
            "title": JSON,
            "description": JSON,
            "minItems": JSON,
            "maxLength": JSON,
            "minimum": JSON,
            "maximum": JSON,
            "pattern": JSON,
            "$ref": JSON,
        },
    )


SCHEMAS = st.recursive(JSON, _schemas, max_leaves=6)


@given(SCHEMAS)
def test_what_is_valid_at_a_glance_satisfies_the_meta_schema(schema: object) -> None:
    if is_plainly_valid(cast("JsonValue", schema)):
        jsonschema.Draft202012Validator.check_schema(cast("dict[str, object] | bool", schema))


def test_the_schemas_of_most_workflows_are_valid_at_a_glance() -> None:
    item: JsonValue = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}

    assert is_plainly_valid({"type": "array", "items": item, "minItems": 1})
    assert not is_plainly_valid({"type": "arrya"})
    assert not is_plainly_valid({"minItems": True})


COUNTS = st.integers(0, 40) | st.sampled_from([-3, 2.5, 999, 10**12])
PLAIN_LEAVES = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "number", "boolean", "null"])},
    optional={
        "enum": st.lists(st.text(max_size=3), max_size=3),
        "minLength": COUNTS,
        "maxLength": COUNTS,
        "minimum": COUNTS,
        "maximum": COUNTS,
        "description": st.text(max_size=2),
    },
)


def _plain_schemas(inner: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner},
        optional={"minItems": COUNTS, "maxItems": COUNTS},
    )
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(st.text(max_size=2), inner)},
        optional={
            "required": st.lists(st.sampled_from(["", "a"]), max_size=2),
            "additionalProperties": st.booleans(),
        },
    )
    return cast("st.SearchStrategy[dict[str, object]]", arrays | objects)


def does_compile(schema: JsonValue) -> bool:
    faults = [str(LLMatcher.validate_grammar(one.text)) for one in json_grammars(schema)]
    return any(not fault or fault.startswith("WARNING") for fault in faults)


@settings(max_examples=300)
@given(st.recursive(PLAIN_LEAVES, _plain_schemas, max_leaves=6))
def test_what_compiles_at_a_glance_compiles(schema: dict[str, object]) -> None:
    plain = cast("JsonValue", schema)
    if is_plainly_valid(plain) and is_sure_to_compile(plain):
        assert does_compile(plain)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "enum": [str(idx) for idx in range(1_000)]},
        {"type": "string", "minLength": 999, "maxLength": 1_000},
        {"type": "integer", "minimum": -(10**9), "maximum": 10**9},
        {"type": "array", "minItems": 400, "maxItems": 499, "items": {"type": "string"}},
        {"type": "object", "properties": {f"f{idx}": {"type": "number"} for idx in range(900)}},
    ],
)
def test_the_largest_that_compile_at_a_glance_compile(schema: JsonValue) -> None:
    assert is_sure_to_compile(schema)
    assert does_compile(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "array", "minItems": 3, "maxItems": 2, "items": {"type": "string"}},
        {"type": "object", "properties": {}, "required": ["a"]},
        {"type": "string", "pattern": "a"},
        {"type": "string", "enum": []},
    ],
)
def test_what_may_not_compile_is_left_to_the_compiler(schema: JsonValue) -> None:
    assert not is_sure_to_compile(schema)
