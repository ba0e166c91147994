"""Whatever schema and value: what the mask allows, the judge accepts."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_schema_suite import compile_without_model, is_valid, ordered

from flowforge.grammars import JsonOptions
from flowforge.grammars.compilation import matches
from flowforge.grammars.lowering.walk import lower_schema

NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 2.5, "", "a", "ab"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
COUNTS = st.integers(0, 2)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(NAMES, inner, max_size=3)
    names = st.lists(NAMES, max_size=2, unique=True)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES,
        "const": SCALARS,
        "enum": st.lists(SCALARS, min_size=1, max_size=3),
        "minimum": COUNTS,
        "exclusiveMaximum": COUNTS,
        "minLength": COUNTS,
        "maxItems": COUNTS,
        "minItems": COUNTS,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "contains": inner,
        "uniqueItems": st.booleans(),
        "unevaluatedItems": st.just(False),
        "properties": properties,
        "required": names,
        "additionalProperties": st.booleans() | inner,
        "unevaluatedProperties": st.just(False),
        "propertyNames": st.fixed_dictionaries({"enum": names}) | st.just({"maxLength": 0}),
        "minProperties": COUNTS,
        "maxProperties": COUNTS,
        "dependentRequired": st.dictionaries(NAMES, names, max_size=2),
        "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "anyOf": st.lists(inner, min_size=1, max_size=2),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=3),
    }
    some = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=4, unique=True)
    return some.flatmap(
        lambda chosen: st.fixed_dictionaries({key: keywords[key] for key in chosen})
    )


SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.booleans() | _schemas(st.booleans()), _schemas)
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@settings(max_examples=120, suppress_health_check=SLOW)
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=8), st.booleans())
def test_the_judge_accepts_what_the_mask_allows(
    schema: Any, values: list[Any], closes: bool
) -> None:
    matcher = compile_without_model(schema, JsonOptions(closes_objects=closes))
    if matcher is None:
        return
    for value in values:
        text = json.dumps(ordered(value, matcher), separators=(",", ":"))
        if matches(matcher.deep_copy(), text):
            assert is_valid(text, schema)


@settings(max_examples=120, suppress_health_check=SLOW)
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=8))
def test_a_relaxed_mask_allows_what_the_judge_accepts(schema: Any, values: list[Any]) -> None:
    """But for keywords that are enforced by a narrower form."""
    lowered = lower_schema(schema, closes_objects=False)
    matcher = compile_without_model(schema, JsonOptions("relax", closes_objects=False))
    if matcher is None or _is_narrowed(schema) or lowered.unenforced:
        return
    for value in values:
        text = json.dumps(ordered(value, matcher), separators=(",", ":"))
        if is_valid(text, schema):
            assert matches(matcher.deep_copy(), text)


def _is_narrowed(schema: Any) -> bool:
    return "unevaluated" in json.dumps(schema)
