"""What counts as the JSON that a schema asks for."""

from __future__ import annotations

from typing import Any

import pytest

from flowforge.errors import WorkflowError
from flowforge.grammars import validate_json

THREE: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3}


def test_a_valid_text_gives_its_value() -> None:
    assert ["a", "b", "ü"] == validate_json('["a","b","ü"]', THREE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "column 2"),
        ("1 2", "extra data"),
        ("[NaN]", "NaN"),
        ("[-Infinity]", "-Infinity"),
        ("1e999", "range of a float"),
        ('{"a":1,"a":2}', '"a" is there twice'),
        ("[" * 100_000 + "]" * 100_000, "too deep"),
        ("9" * 5_000, "digits"),
    ],
)
def test_what_is_not_one_json_value_is_refused(text: str, words: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        validate_json(text, True)

    assert caught.value.code == "WF412"
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('["a","b"]', "as a whole breaks 'minItems'"),
        ('["a",1,"c"]', "at '/1' breaks 'type': got 1, expected \"string\""),
    ],
)
def test_what_breaks_the_schema_is_told_with_its_place(text: str, words: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        validate_json(text, THREE)

    assert caught.value.code == "WF413"
    assert words in caught.value.message


def test_a_format_is_asserted_and_not_only_noted() -> None:
    with pytest.raises(WorkflowError, match="format"):
        validate_json('"2024-13-01"', {"type": "string", "format": "date"})


def test_a_long_answer_is_not_printed_in_full() -> None:
    with pytest.raises(WorkflowError) as caught:
        validate_json('"' + "x" * 10_000 + '"', {"maxLength": 3})

    assert len(caught.value.message) < 200
