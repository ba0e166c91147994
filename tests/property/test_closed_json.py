"""What a value stream shows of JSON that is still being written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from flowforge.flows.streams import closed_part

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue

SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=8)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)


@given(VALUES, st.data())
def test_what_is_shown_of_a_prefix_is_part_of_the_whole(
    value: JsonValue, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    end = data.draw(st.integers(0, len(text)))

    shown = closed_part(text[:end])

    assert shown is None or is_part(shown, value)


@given(st.lists(VALUES) | st.dictionaries(st.text(max_size=4), VALUES))
def test_a_list_or_object_that_is_whole_is_shown_whole(value: JsonValue) -> None:
    assert value == closed_part(json.dumps(value))


def is_part(shown: JsonValue, whole: JsonValue) -> bool:
    """Whether everything in `shown` is final: only ends of lists and objects may be missing."""
    if isinstance(shown, list) and isinstance(whole, list):
        pairs = zip(shown, whole, strict=False)
        return len(shown) <= len(whole) and all(is_part(a, b) for a, b in pairs)
    if isinstance(shown, dict) and isinstance(whole, dict):
        return all(key in whole and is_part(part, whole[key]) for key, part in shown.items())
    return type(shown) is type(whole) and shown == whole
