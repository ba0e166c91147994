"""What `check_schema` finds in a schema, and where."""

from __future__ import annotations

from typing import Any

import pytest

from flowforge.grammars import JsonOptions, check_schema


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
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "minItems": 1},
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    ],
)
def test_a_good_schema_has_no_problem(schema: Any) -> None:
    assert check_schema(schema) == []


@pytest.mark.parametrize(
    ("schema", "pointer", "words"),
    [
        ({"type": "strin"}, "/type", "strin"),
        ({"minItems": "3"}, "/minItems", "integer"),
        ({"properties": {"a/b": {"not": {"contains": {}}}}}, "/properties/a~1b/not", "'not'"),
        ({"anyOf": [{}, {"uniqueItems": True}]}, "/anyOf/1/uniqueItems", "cannot be enforced"),
        ({"propertiez": {}}, "/propertiez", "unknown keyword"),
        ({"$ref": "https://example.com/s"}, "/$ref", "leads out"),
        ({"$ref": "#/$defs/x"}, "", "/$defs/x"),
        ({"items": {"type": "string", "pattern": "(?=a)b"}}, "/items/pattern", "looks ahead"),
        ({"properties": {"a": {"format": "date_time"}}}, "/properties/a/format", "date_time"),
        ({"items": {"format": "regex"}}, "/items/format", "does not know 'regex'"),
        ({"$dynamicRef": "https://example.com/s"}, "/$dynamicRef", "nothing is fetched"),
        ({"oneOf": [{"minimum": 1}, {"pattern": "a"}]}, "/oneOf", "exclude each other"),
        ({"if": {"contains": {}}, "then": {"minItems": 2}}, "/if", "does not hold"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "", "minimum (5)"),
        (False, "", "no answer"),
        ({"$ref": "#"}, "/$ref", "no answer can end"),
        (
            {"properties": {"a": {"$ref": "#"}}, "type": "object", "required": ["a"]},
            "/properties/a/$ref",
            "no answer can end",
        ),
        (
            {
                "properties": {"next": {"$ref": "#/$defs/n"}},
                "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}},
            },
            "/properties/next/$ref /$defs/n/items/$ref",
            "no answer can end",
        ),
        (5, "", "an object or a boolean"),
        ({"const": float("nan")}, "", "not a JSON value"),
    ],
)
def test_an_error_names_the_place_and_the_reason(schema: Any, pointer: str, words: str) -> None:
    errors = [problem for problem in check_schema(schema) if problem.severity == "error"]

    assert pointer == " ".join(problem.pointer for problem in errors)
    assert words in errors[0].message


def test_a_schema_that_nothing_satisfies_is_not_told_to_relax() -> None:
    (problem,) = check_schema({"type": "string", "minLength": 3, "maxLength": 2})

    assert problem.help is not None
    assert problem.help.startswith("no answer can satisfy it")


def test_a_near_miss_is_suggested() -> None:
    assert check_schema({"minItem": 3})[0].help == "did you mean 'minItems'?"


@pytest.mark.parametrize("keyword", ["x-order", "_format", "decription"])
def test_an_unknown_keyword_that_constrains_nothing_is_a_warning(keyword: str) -> None:
    (problem,) = check_schema({keyword: "1"})

    assert ("warning", f"/{keyword}") == (problem.severity, problem.pointer)


def test_all_problems_are_reported_at_once() -> None:
    problems = check_schema({"$ref": "a.json", "properties": {"a": {"maxItem": 1}}, "type": "list"})

    assert {"/$ref", "/properties/a/maxItem", "/type"} == {problem.pointer for problem in problems}
    contains: Any = {"contains": {"type": "null"}}
    problems = check_schema({"uniqueItems": True, "properties": {"a": contains}})
    assert {"/uniqueItems", "/properties/a/contains"} == {problem.pointer for problem in problems}


def test_relaxed_keywords_are_warnings_with_their_places() -> None:
    schema: Any = {"properties": {"a": {"uniqueItems": True}, "b": {"contains": {"type": "null"}}}}

    problems = check_schema(schema, JsonOptions(on_unsupported="relax"))

    assert ["/properties/a/uniqueItems", "/properties/b/contains"] == [p.pointer for p in problems]
    assert {"warning"} == {problem.severity for problem in problems}
    assert "judges only the finished answer" in problems[0].message


@pytest.mark.parametrize("options", [JsonOptions(), JsonOptions(on_unsupported="relax")])
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "string", "pattern": "([a-z"}, "/pattern"),
        ({"patternProperties": {"([a-z": {"type": "string"}}}, "/patternProperties/([a-z"),
        ({"propertyNames": {"pattern": "([a-z"}}, "/propertyNames/pattern"),
    ],
)
def test_a_pattern_that_is_no_regex_is_an_error_also_relaxed(
    schema: Any, pointer: str, options: JsonOptions
) -> None:
    (found,) = check_schema(schema, options)

    assert (pointer, "error") == (found.pointer, found.severity)
    assert "is no regex: unterminated character set" in found.message
    assert "close each bracket" in str(found.help)


def test_a_pattern_is_told_to_be_mended_where_no_bracket_is_open() -> None:
    (found,) = check_schema({"pattern": "*a"})

    assert "nothing to repeat" in found.message
    assert "mend the regex" in str(found.help)


def test_an_error_says_that_it_can_be_relaxed() -> None:
    (problem,) = check_schema({"uniqueItems": True})

    assert problem.help is not None
    assert "on_unsupported: relax" in problem.help


@pytest.mark.parametrize("name", ["byte", "int32", "path"])
def test_a_format_that_nobody_knows_is_a_remark(name: str) -> None:
    (problem,) = check_schema({"type": "string", "format": name})

    assert ("warning", "/format") == (problem.severity, problem.pointer)


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
    (problem,) = check_schema({"enum": ["x" * 1_000_000]})

    assert "the schema has 1,000,014 characters, expected at most 1,000,000" == problem.message
