"""What `check_schema` finds in a schema, and where."""

from __future__ import annotations

from typing import Any

import pytest

from flowforge.grammars import check_schema


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3},
        {"$ref": "#/$defs/node", "$defs": {"node": {"items": {"$ref": "#/$defs/node"}}}},
        {"enum": [{"unheard": 1}], "default": {"of": 1}, "title": "values are no schemas"},
        {"properties": {"not": {}, "if": {}}, "title": "names of properties are no keywords"},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    ],
)
def test_a_good_schema_has_no_problem(schema: Any) -> None:
    assert check_schema(schema) == []


@pytest.mark.parametrize(
    ("schema", "pointer", "words"),
    [
        ({"type": "strin"}, "/type", "strin"),
        ({"minItems": "3"}, "/minItems", "integer"),
        ({"properties": {"a/b": {"not": {}}}}, "/properties/a~1b/not", "'not'"),
        ({"anyOf": [{}, {"uniqueItems": True}]}, "/anyOf/1/uniqueItems", "cannot be enforced"),
        ({"propertiez": {}}, "/propertiez", "unknown keyword"),
        ({"$ref": "https://example.com/s"}, "/$ref", "leads out"),
        ({"$ref": "#/$defs/x"}, "", "/$defs/x"),
        ({"items": {"type": "string", "pattern": "(?=a)b"}}, "/items", "look-ahead"),
        ({"properties": {"a": {"format": "foo"}}}, "/properties/a", "foo"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "", "minimum (5)"),
        (False, "", "no answer"),
        (5, "", "an object or a boolean"),
        ({"const": float("nan")}, "", "not a JSON value"),
    ],
)
def test_an_error_names_the_place_and_the_reason(schema: Any, pointer: str, words: str) -> None:
    errors = [problem for problem in check_schema(schema) if problem.severity == "error"]

    assert [pointer] == [problem.pointer for problem in errors]
    assert words in errors[0].message


def test_a_near_miss_is_suggested() -> None:
    assert check_schema({"minItem": 3})[0].help == "did you mean 'minItems'?"


@pytest.mark.parametrize("keyword", ["x-order", "_format", "decription"])
def test_an_unknown_keyword_that_constrains_nothing_is_a_warning(keyword: str) -> None:
    (problem,) = check_schema({keyword: "1"})

    assert ("warning", f"/{keyword}") == (problem.severity, problem.pointer)


def test_all_problems_are_reported_at_once() -> None:
    problems = check_schema({"not": {}, "properties": {"a": {"maxItem": 1}}, "type": "list"})

    assert {"/not", "/properties/a/maxItem", "/type"} == {problem.pointer for problem in problems}


@pytest.mark.parametrize("depth", [65, 5_000])
def test_nesting_past_the_limit_is_found_without_recursion(depth: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}

    (problem,) = check_schema(schema)

    assert "at most 64" in problem.message


def test_a_schema_that_holds_itself_is_nested_too_deep() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema

    assert "at most 64" in check_schema(schema)[0].message


def test_a_huge_schema_is_refused_by_its_size() -> None:
    assert "at most 1000000" in check_schema({"enum": ["x" * 1_000_000]})[0].message
