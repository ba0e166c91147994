"""Parts of JSON texts: wherever a text is cut, its parts come in order and are all of its value."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowforge.flows.streams import closed_part
from flowforge.grammars.json_parts import JsonPart, JsonParts

if TYPE_CHECKING:
    from flowforge.grammars.schema_dialect import JsonValue

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet='ab"\\/{}[],: \n\té€😀', max_size=6)
)
keys = st.text(alphabet='ab"\\:,{', max_size=3)
values = st.recursive(
    scalars, lambda one: st.lists(one, max_size=4) | st.dictionaries(keys, one, max_size=4)
)
outer = st.lists(values, max_size=5) | st.dictionaries(keys, values, max_size=5)


def read(text: str, sizes: list[int]) -> list[list[JsonPart]]:
    parts = JsonParts()
    read: list[list[JsonPart]] = []
    place = 0
    for size in [*sizes, len(text)]:
        read.append(parts.push(text[place : place + size]))
        place += size
    return read


@given(
    value=outer,
    sizes=st.lists(st.integers(0, 6), max_size=40),
    indent=st.sampled_from([None, 2]),
    is_ascii=st.booleans(),
)
def test_all_parts_together_are_the_value_wherever_the_text_is_cut(
    value: list[JsonValue] | dict[str, JsonValue],
    sizes: list[int],
    indent: int | None,
    is_ascii: bool,
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)

    parts = [part for some in read(text, sizes) for part in some]

    if isinstance(value, list):
        assert [JsonPart(idx, one) for idx, one in enumerate(value)] == parts
    else:
        assert [JsonPart(key, one) for key, one in value.items()] == parts


@given(value=outer, cut=st.integers(0, 60))
def test_a_part_comes_with_the_text_that_ends_it_and_never_before(
    value: list[JsonValue] | dict[str, JsonValue], cut: int
) -> None:
    text = json.dumps(value, separators=(",", ":"))
    cut = min(cut, len(text))

    parts = JsonParts().push(text[:cut])

    whole = list(value) if isinstance(value, list) else list(value.values())
    assert whole[: len(parts)] == [part.value for part in parts]
    begun = closed_part(text[:cut])
    if parts:
        assert isinstance(begun, list | dict)
        assert len(parts) <= len(begun)


@given(value=outer)
def test_what_is_closed_so_far_grows_into_the_value(
    value: list[JsonValue] | dict[str, JsonValue],
) -> None:
    text = json.dumps(value)

    seen = [closed_part(text[:size]) for size in range(len(text) + 1)]

    assert seen[-1] == value
    for earlier, later in pairwise(seen):
        assert earlier is None or grows_into(earlier, later)


def grows_into(earlier: JsonValue, later: JsonValue) -> bool:
    if isinstance(earlier, list) and isinstance(later, list):
        pairs = zip(earlier, later, strict=False)
        return len(earlier) <= len(later) and all(grows_into(*pair) for pair in pairs)
    if isinstance(earlier, dict) and isinstance(later, dict):
        return all(key in later and grows_into(one, later[key]) for key, one in earlier.items())
    return earlier == later


@pytest.mark.parametrize("text", ["", "12", '"a, b"', "null", "  ", "Dear [1], no", '"[1, 2]"'])
def test_texts_that_are_no_array_or_object_have_no_parts(text: str) -> None:
    assert [] == JsonParts().push(text)


@pytest.mark.parametrize(
    ("text", "num_parts"),
    [("[1, oops, 3]", 1), ('{"a": 1, 2: 3}', 1), ("[1][2]", 1), ("[1, NaN]", 1), ('{"a" 1}', 0)],
)
def test_a_text_that_is_no_json_ends_its_parts_where_that_shows(text: str, num_parts: int) -> None:
    assert num_parts == len(JsonParts().push(text))
