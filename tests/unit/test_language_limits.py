"""Expressions, filters and warnings at their edges: no value takes long, and none is misread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.language.evaluation import evaluate_node
from flowforge.language.expression_parser import parse_expression
from flowforge.language.json_values import MAX_TEXT_CHARS, EvaluationError
from flowforge.language.loader import load_text

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue

HEAD = "flowforge: 1\nname: t\n"


def value(text: str, **scope: JsonValue) -> JsonValue:
    return evaluate_node(parse_expression(text), scope)


def code(text: str, **scope: JsonValue) -> str:
    with pytest.raises(EvaluationError) as caught:
        value(text, **scope)
    return caught.value.code


def test_values_that_share_parts_are_counted_as_if_written_out() -> None:
    doubled: JsonValue = "x"
    with pytest.raises(EvaluationError) as caught:
        for _ in range(60):
            doubled = value("[last, last]", last=doubled)

    assert "WF403" == caught.value.code


def test_a_value_that_is_wrapped_again_and_again_is_too_deep() -> None:
    nested: JsonValue = []
    with pytest.raises(EvaluationError) as caught:
        for _ in range(1_000):
            nested = value("[last]", last=nested)

    assert "WF403" == caught.value.code


@pytest.mark.parametrize(
    "text",
    [
        "long | replace('x', long)",
        "[long, long] | join",
        "[long, long]",
        "[[1]] | append(long) | concat([long])",
        "big * big",
        "huge * huge",
        "huge / 0.0001",
    ],
)
def test_nothing_grows_past_its_limit(text: str) -> None:
    scope: dict[str, JsonValue] = {
        "long": "x" * (MAX_TEXT_CHARS // 2 + 1),
        "big": 2**1000,
        "huge": 1e308,
    }

    assert "WF403" == code(text, **scope)


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (7, "1 + 2 * 3"),
        (4, "a - 1"),
        (4, "a -1"),
        (-5, "-a"),
        (2.5, "a / 2"),
        (1, "-9 % 5"),
        (6, "absent ?? a + 1"),
        (6, "(a) + 1"),
        (True, "1 + 1 == 2.0"),
        (3, "[1, 2] | len + 1"),
    ],
)
def test_arithmetic_binds_as_it_does_on_paper(expected: JsonValue, text: str) -> None:
    assert expected == value(text, a=5, absent=None)


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (["a", "b"], "['b', 'a'] | sort"),
        ([1, 1.5, 2], "[2, 1, 1.5] | sort"),
        ([{"n": 1}, {"n": 2}], "rows | sort('n')"),
        ([1, True, "1"], "[1, 1.0, true, '1'] | unique"),
        (1, "[1, true, '1'] | count(1.0)"),
        ([2, None], "[rows[0], empty] | pluck('n')"),
        ([{"n": 1}], "rows | where('n', 1)"),
        (None, "[] | max"),
        (0, "[] | sum"),
        (3.5, "[1, 2.5] | sum"),
        (2, "2.5 | round"),
        (2.67, "2.6749 | round(2)"),
        ("abc", "'abc' | truncate(3)"),
        ("a…", "'abc' | truncate(2)"),
        ("", "'abc' | truncate(0)"),
        ("ab", "'abc' | truncate(2, '')"),
        (None, "'1_000' | number"),
        (None, "'nan' | number"),
        (None, "'١٢' | number"),
        (None, "'1e999' | number"),
        (-1.5, "'-1.5' | number"),
        (1000.0, "'1e3' | number"),
        ("1. a\n   b\n2. c", "['a\\nb', 'c'] | numbered"),
        ([3], "[1, 2, 3] | tail(1)"),
        ([], "[1, 2, 3] | tail(0)"),
        ([1, 2], "[1, 2] | head(5)"),
    ],
)
def test_a_filter_gives(expected: JsonValue, text: str) -> None:
    found = value(text, rows=[{"n": 2}, {"n": 1}], empty={})

    assert expected == found
    assert type(expected) is type(found)


@pytest.mark.parametrize(
    "text",
    ["[1, 'a'] | sort", "[null, 1] | min", "[true] | max", "'a' | truncate(-1)", "'' | split('')",
     "'a' | replace('', 'b')", "[1] | pluck('n')", "true + 1", "'1' + 1", "[1] | round"],
)  # fmt: skip
def test_a_value_that_a_filter_or_sign_cannot_take_is_an_error(text: str) -> None:
    assert "WF404" == code(text)


def test_a_minus_inside_a_name_is_explained() -> None:
    text = "steps: { n: { set: 1 }, a: { set: '${ n-1 }' } }"

    (diagnostic,) = load_text(HEAD + text).diagnostics

    assert ("WF202", "names may hold '-': write spaces around it to subtract") == (
        diagnostic.code,
        diagnostic.help,
    )


def _warnings(text: str) -> list[str]:
    result = load_text(HEAD + text)
    assert result.program is not None, result.diagnostics
    return [one.code for one in result.diagnostics]


LOOP = (
    "steps: {{ l: {{ loop: {{ x: {}, y: 0 }}, max: {}, do: {{ a: {{ set: '${{ y }}' }} }}, "
    "next: {{ x: '{}', y: '${{ a }}' }} }} }}\noutputs: {{ o: '${{ l{} }}' }}\n"
)


@pytest.mark.parametrize(
    ("expected", "first", "rounds", "following", "read"),
    [
        ([], "''", 50, "${ x }", ""),
        ([], "''", 5, "${ x } and ${ a }", ""),
        (["WF153"], "''", 50, "${ x } and ${ a }", ""),
        ([], "''", 50, "${ [x, a] | join | truncate(9) }", ""),
        (["WF153"], "[]", 50, "${ x | append(a) }", ""),
        (["WF153"], "[]", 50, "${ (x | append(a)) if y > 1 else x }", ""),
        ([], "[]", 50, "${ x | append(a) | tail(3) }", ""),
        ([], "[]", 50, "${ (x | tail(3)) | append(a) }", ""),
        ([], "0", 50, "${ a }", ".x"),
        ([], "0", 50, "${ a }", ""),
        (["WF150"], "0", 50, "${ a }", ".y"),
    ],
)
def test_carried_values_that_grow_or_are_not_read_are_warned_of(
    expected: list[str], first: str, rounds: int, following: str, read: str
) -> None:
    assert expected == _warnings(LOOP.format(first, rounds, following, read))


TOOLS = "tools: { w: { python: 'm:w' }, r: { python: 'm:r', effect: read } }\n"


@pytest.mark.parametrize(
    ("expected", "steps"),
    [
        (["WF151"], "{ a: { call: w }, b: { call: w } }"),
        ([], "{ a: { call: w }, b: { call: w, after: a } }"),
        ([], "{ a: { call: w }, m: { set: '${ a }' }, b: { call: w, when: '${ m == 1 }' } }"),
        ([], "{ a: { call: w }, b: { call: r } }"),
        ([], "{ a: { if: true, then: { b: { call: w } }, else: { c: { call: w } } } }"),
        (["WF151"], "{ a: { parallel: { b: { call: w }, c: { call: w } } } }"),
        (["WF151"], "{ a: { for: 'x in [1]', do: { b: { call: w } } }, c: { call: w } }"),
    ],
)
def test_writes_in_no_order_are_warned_of(expected: list[str], steps: str) -> None:
    assert expected == _warnings(f"{TOOLS}steps: {steps}\n")


@pytest.mark.parametrize(
    ("expected", "steps"),
    [
        (["WF152"], "{ a: { set: 1 }, b: { set: 2 } }"),
        ([], "{ a: { set: 1 }, b: { set: '${ a }' } }"),
        ([], "{ a: { user: hi, gen: }, b: { from: a, gen: } }"),
        ([], "{ a: { call: w }, b: { set: 2 } }"),
        ([], "{ a: { ask: ok? }, b: { set: 2, after: a } }"),
        (["WF152"], "{ b: {if: true, then: {do: {c: {set: 1}, d: {set: 2}}, yield: '${ d }'}} }"),
        ([], "{ b: { set: 1, finally: { c: { set: 1 }, d: { set: 2 } } } }"),
    ],
)  # fmt: skip
def test_a_step_that_nothing_uses_is_warned_of(expected: list[str], steps: str) -> None:
    assert expected == _warnings(f"{TOOLS}steps: {steps}\noutputs: {{ o: '${{ b }}' }}\n")


def test_without_outputs_every_step_is_a_result() -> None:
    assert [] == _warnings("steps: { a: { set: 1 }, b: { set: 2 } }\n")
