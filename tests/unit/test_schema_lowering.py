"""What a mask allows of schemas whose keywords it does not know: said exactly, in other words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from json_schema_suite import compile_without_model, is_valid

from flowforge.grammars import JsonOptions
from flowforge.grammars.compilation import matches
from flowforge.grammars.lowering.walk import lower_schema

OPEN = JsonOptions(closes_objects=False)
OBJECT = {"type": "object"}


def allows(schema: Any, value: object, options: JsonOptions = OPEN) -> bool:
    matcher = compile_without_model(schema, options)
    assert matcher is not None, "the schema is refused"
    return matches(matcher, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


SHAPE: dict[str, Any] = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "size": {}},
            "required": ["kind"],
        }
        for kind in ("circle", "square")
    ]
}
CHOICE: dict[str, Any] = {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}

# A schema, values that it takes and values that it does not.
EXACT: list[tuple[Any, list[object], list[object]]] = [
    ({"not": {"const": "ab"}}, ["a", "abc", "", 1, None], ["ab"]),
    ({"not": {"enum": ["a", 1, True, None]}}, ["b", 2, 1.5, False, []], ["a", 1, True, None]),
    ({"type": "string", "not": {"enum": ["ü", "ab"]}}, ["u", "a", "\n"], ["ü", "ab", 1]),
    ({"not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
    ({"not": {"type": "string"}}, [1, {}], ["a"]),
    ({"not": {"minimum": 3}}, [2], [3, "a"]),
    ({"not": {"not": {"type": "string"}}}, ["a"], [1]),
    ({"not": {"anyOf": [{"const": 1}, {"maxLength": 2}]}}, ["abc"], [1, "ab", 2]),
    (SHAPE, [{"kind": "circle"}, {"kind": "square", "size": 1}], [{"kind": "line"}, {}]),
    ({"oneOf": [{"minimum": 2}, {"maximum": 3}]}, [1, 3.5], [2, 2.5, "a"]),
    (
        {"dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"b": 1, "a": 1}, 7],
        [{"a": 1}],
    ),
    (
        {"dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}}}},
        [{"b": 1}, {"a": 1, "b": None}],
        [{"a": 1, "b": 1}],
    ),
    (
        {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}},
        [{"b": 1}],
        [{"a": 1}],
    ),
    (
        {
            **OBJECT,
            "properties": {"paid": {"type": "boolean"}, "due": {"type": "string"}},
            "if": {"properties": {"paid": {"const": False}}, "required": ["paid"]},
            "then": {"required": ["due"]},
            "else": {"properties": {"due": False}},
        },
        [{}, {"paid": True}, {"paid": False, "due": "x"}],
        [{"paid": False}, {"paid": True, "due": "x"}, {"due": "x"}],
    ),
    ({**OBJECT, "propertyNames": {"maxLength": 2}}, [{}, {"ab": 1}], [{"abc": 1}]),
    ({**OBJECT, "propertyNames": {"enum": ["a", "b"]}}, [{"a": 1}], [{"c": 1}]),
    (
        {**OBJECT, "properties": {"a": {}, "bb": {}}, "additionalProperties": False}
        | {"propertyNames": {"maxLength": 1}},
        [{"a": 1}],
        [{"bb": 1}],
    ),
    (
        {**OBJECT, "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False}
        | {"minProperties": 2},
        [{"a": 1, "b": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
        [{}, {"c": 1}],
    ),
    (
        {**OBJECT, "properties": {"a": {}, "b": {}}, "additionalProperties": False}
        | {"maxProperties": 1},
        [{}, {"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}],
    ),
    (
        {"allOf": [{"properties": {"a": {}}}], "properties": {"b": {}}}
        | {"unevaluatedProperties": False},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"c": 1}],
    ),
    (
        {"oneOf": SHAPE["oneOf"], "unevaluatedProperties": False},
        [{"kind": "circle", "size": 1}],
        [{"kind": "circle", "more": 1}],
    ),
    (
        {"type": "array", "prefixItems": [{"type": "string"}], "unevaluatedItems": False},
        [[], ["a"]],
        [["a", 1]],
    ),
    (CHOICE, [[], ["c", "a"], ["a", "b", "c"]], [["a", "a"], ["d"]]),
    ({**CHOICE, "minItems": 2, "maxItems": 2}, [["b", "a"]], [["b"], ["a", "b", "c"]]),
    ({"uniqueItems": False}, [[1, 1]], []),
    ({"type": "array", "contains": True}, [[1]], [[]]),
    (
        {"type": "array", "contains": {"const": 7}, "maxItems": 3},
        [[7], [1, 7], [1, 2, 7], [7, 7]],
        [[], [1, 2, 3]],
    ),
    ({"$defs": {"a": {"$dynamicAnchor": "x", "type": "null"}}, "$dynamicRef": "#x"}, [None], [1]),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1}
     | {"exclusiveMinimum": True}, [2], [1]),
    ({"enum": [1.0, "a"]}, [1, "a"], [2]),
    (
        {"type": "string", "format": "date"},
        ["2024-02-29", "2000-02-29", "0001-01-01", "1999-12-31"],
        ["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31", "2024-13-01"],
    ),
    ({"type": "array", "minItems": 2.0}, [[1, 2]], [[1]]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), EXACT, ids=range(len(EXACT)))
def test_a_keyword_is_enforced_in_other_words(
    schema: Any, valid: list[object], invalid: list[object]
) -> None:
    assert () == lower_schema(schema, closes_objects=False).unenforced
    for value in valid:
        assert is_valid(json.dumps(value), schema)
        assert allows(schema, value), value
    for value in invalid:
        assert not is_valid(json.dumps(value), schema)
        assert not allows(schema, value), value


POINT: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}

# A schema, what it takes when objects are closed, and what it then does not take any more.
CLOSED: list[tuple[Any, list[object], list[object]]] = [
    (POINT, [{"x": 1}, {}], [{"x": 1, "y": 2}]),
    ({**POINT, "additionalProperties": True}, [{"x": 1, "y": 2}], []),
    ({"type": "object"}, [{"any": 1}], []),
    ({**POINT, "required": ["x", "n"]}, [{"x": 1, "n": "a"}], [{"x": 1, "n": "a", "b": 1}]),
    ({"type": "array", "items": POINT}, [[{"x": 1}]], [[{"y": 1}]]),
    ({"anyOf": [POINT, {"type": "null"}]}, [{"x": 1}, None], [{"y": 1}]),
    (
        {"allOf": [POINT, {"properties": {"y": {"type": "integer"}}}]},
        [{"x": 1, "y": 2}],
        [{"x": 1, "y": 2, "z": 3}],
    ),
    (
        {"$ref": "#/$defs/p", "$defs": {"p": {**POINT, "required": ["x"]}}},
        [{"x": 1}],
        [{"x": 1, "y": 1}],
    ),
    (
        {"allOf": [{"$ref": "#/$defs/p"}], "properties": {"y": {}}, "$defs": {"p": POINT}},
        [{"y": 1}, {"x": 1}],
        [{"z": 1}],
    ),
    (
        {"$ref": "#/$defs/n"}
        | {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}, "type": "object"}}},
        [{"next": {"next": {}}}],
        [{"next": {"last": 1}}],
    ),
    (
        {"properties": {"x": {}, "y": {}}, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
        [{"x": 1}, {"y": 1}],
        [{"x": 1, "z": 1}],
    ),
    ({"not": {"properties": {"x": {"const": 1}}}}, [{"x": 2, "y": 1}], []),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "left_out"), CLOSED, ids=range(len(CLOSED)))
def test_objects_that_name_their_properties_take_no_others(
    schema: Any, valid: list[object], left_out: list[object]
) -> None:
    closed = JsonOptions()
    for value in valid:
        assert allows(schema, value, closed), value
    for value in left_out:
        assert is_valid(json.dumps(value), schema)
        assert not allows(schema, value, closed), value
        assert allows(schema, value), value


def test_a_pattern_of_one_name_is_that_name_once() -> None:
    schema = {
        "type": "object",
        "properties": {"y": {"type": "integer"}},
        "patternProperties": {"^x1$": {"const": 4}, "^y$": {"minimum": 2}},
        "required": ["x1"],
        "additionalProperties": False,
    }

    assert allows(schema, {"y": 2, "x1": 4})
    assert not allows(schema, {"y": 1, "x1": 4})
    assert not allows(schema, {"y": 2})
    matcher = compile_without_model(schema, OPEN)
    assert matcher is not None
    assert not matches(matcher, '{"x1":4,"x1":4}')
    # Nothing could follow this comma, so it may not be written.
    text = list(b'{"y":2,"x1":4,')
    matcher = compile_without_model(schema, OPEN)
    assert matcher is not None
    assert len(text) - 1 == matcher.validate_tokens(text)


def test_keys_come_in_the_order_of_the_schema() -> None:
    schema = {
        "properties": {"b": {}, "a": {}},
        "required": ["a"],
        "dependentRequired": {"b": ["a"]},
    }

    assert allows(schema, {"b": 1, "a": 2})
    assert not allows(schema, {"a": 2, "b": 1})


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"items": {"uniqueItems": True}}, "/items/uniqueItems"),
        ({"properties": {"a/b": {"contains": {"const": 1}}}}, "/properties/a~1b/contains"),
        ({"anyOf": [{}, {"not": {"multipleOf": 2}}]}, "/anyOf/1/not"),
        ({"allOf": [{"minProperties": 1, "properties": {"a": {}}}]}, "/allOf/0/minProperties"),
        ({"if": {"multipleOf": 2}, "else": {"minimum": 1}}, "/if"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"pattern": "(?=a)"}}}, "/$defs/a/pattern"),
        ({"unevaluatedItems": False, "anyOf": [{}]}, "/unevaluatedItems"),
    ],
)
def test_what_is_left_out_is_named_with_its_place(schema: Any, pointer: str) -> None:
    (left_out,) = lower_schema(schema, closes_objects=False).unenforced

    assert pointer == left_out.pointer


def test_what_nothing_refers_to_is_not_reported() -> None:
    schema: Any = {"type": "null", "$defs": {"unused": {"uniqueItems": True}}}

    assert () == lower_schema(schema, closes_objects=True).unenforced


def test_references_that_multiply_are_given_up() -> None:
    twice = {f"a{idx}": {"allOf": [{"$ref": f"#/$defs/a{idx + 1}"}] * 2} for idx in range(40)} | {
        "a40": {"const": 1}
    }
    schema: Any = {"not": {"$ref": "#/$defs/a0"}, "$defs": twice}

    assert ["/not"] == [one.pointer for one in lower_schema(schema, closes_objects=True).unenforced]


def test_bounded_white_space_stays_within_eight_characters() -> None:
    bounded = compile_without_model(
        {"type": "array", "items": {"type": "integer"}}, JsonOptions(whitespace="bounded")
    )

    assert bounded is not None
    assert matches(bounded.deep_copy(), "[1, 2]")
    assert matches(bounded.deep_copy(), "[" + " " * 8 + "1]")
    assert not matches(bounded.deep_copy(), "[" + " " * 9 + "1]")
    assert not matches(bounded.deep_copy(), "[]" + " ")
