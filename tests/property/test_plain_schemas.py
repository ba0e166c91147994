"""A schema that is taken as valid at a glance is valid."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

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
