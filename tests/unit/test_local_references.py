"""References by name inside one schema: found where they lead, and nothing is fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from byte_vocabulary import byte_vocabulary

from flowforge.grammars import compile_json_schema, validate_json
from flowforge.grammars.lowering.local_references import with_local_references
from flowforge.grammars.schema_check import check_schema

if TYPE_CHECKING:
    from flowforge.grammars.schema_dialect import JsonValue

ORDER: dict[str, JsonValue] = {
    "$id": "https://example.org/order.json",
    "type": "object",
    "properties": {
        "item": {"$ref": "item.json"},
        "size": {"$ref": "https://example.org/item.json#/$defs/size"},
        "paid": {"$ref": "#paid"},
    },
    "required": ["item", "size", "paid"],
    "$defs": {
        "Item": {
            "$id": "item.json",
            "enum": [7],
            "$defs": {"size": {"enum": ["s"]}, "same": {"$ref": "#/$defs/size"}},
        },
        "a/b": {"$anchor": "paid", "const": True},
    },
}


def test_a_part_is_found_by_its_id_and_by_its_anchor() -> None:
    expected: dict[str, JsonValue] = {
        **ORDER,
        "properties": {
            "item": {"$ref": "#/$defs/Item"},
            "size": {"$ref": "#/$defs/Item/$defs/size"},
            "paid": {"$ref": "#/$defs/a~1b"},
        },
        "$defs": {
            "Item": {
                "enum": [7],
                "$defs": {
                    "size": {"enum": ["s"]},
                    "same": {"$ref": "#/$defs/Item/$defs/size"},
                },
            },
            "a/b": {"$anchor": "paid", "const": True},
        },
    }

    assert with_local_references(ORDER) == expected


def test_the_mask_follows_names_as_the_judge_does() -> None:
    vocabulary = byte_vocabulary()
    state = compile_json_schema(ORDER, vocabulary.vocabulary).start()
    assert check_schema(ORDER) == []

    written: list[int] = []
    while not state.is_complete:
        token_id = vocabulary.allowed(state)[0]
        state.advance(token_id)
        written.append(token_id)

    text = vocabulary.decode(written)
    assert text == '{"item":7,"size":"s","paid":true}'
    validate_json(text, ORDER)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}},
        {"$ref": "#here", "$defs": {"a": {"$anchor": "here"}}},
        {"$dynamicRef": "#x", "$defs": {"a": {"$id": "a.json", "$dynamicAnchor": "x"}}},
        {"properties": {"$id": {"type": "string"}, "id": {"type": "integer"}}},
        {"enum": [{"$id": "x", "$ref": "y"}]},
        True,
    ],
)
def test_what_is_by_place_or_depends_on_the_way_stays_as_it_is(schema: JsonValue) -> None:
    assert with_local_references(schema) is schema


@pytest.mark.parametrize(
    "reference", ["https://example.org/other.json", "item.json#/nowhere", "item.json#none", "else"]
)
def test_a_reference_that_leads_out_is_refused_at_its_place(reference: str) -> None:
    schema: JsonValue = {
        "$id": "https://example.org/order.json",
        "properties": {"a": {"$ref": "item.json"}, "b": {"$ref": reference}},
        "$defs": {"Item": {"$id": "item.json", "type": "integer"}},
    }

    problems = check_schema(schema)

    assert [problem.pointer for problem in problems] == ["/properties/b/$ref"]
    assert "nothing is fetched" in problems[0].message


def test_an_id_of_an_older_draft_beside_a_reference_is_none() -> None:
    schema: dict[str, JsonValue] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"a": {"$id": "other.json", "$ref": "#/definitions/n"}},
        "definitions": {"n": {"$id": "#n", "type": "integer"}},
    }

    told = with_local_references(schema)

    assert isinstance(told, dict)
    assert told["properties"] == {"a": {"$ref": "#/definitions/n"}}
    assert told["definitions"] == {"n": {"type": "integer"}}
