"""Expressions, filters and warnings at their edges: no value takes long, and none is misread."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from flowforge.language import yaml_composer, yaml_document, yaml_plain_reader
from flowforge.language.diagnostics import near_miss
from flowforge.language.evaluation import evaluate_node
from flowforge.language.expression_parser import parse_expression
from flowforge.language.json_values import MAX_TEXT_CHARS, EvaluationError
from flowforge.language.loader import load_text
from flowforge.language.schema_nodes import schema_of_node
from flowforge.language.source import Source, Span
from flowforge.language.yaml_nodes import Entry, MappingNode, ScalarNode

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def test_a_workflow_without_outputs_is_told_once_and_not_for_each_step() -> None:
    assert ["WF156"] == _warnings("steps: { a: { set: 1 }, b: { set: 2 } }\n")


def test_a_workflow_that_is_there_for_its_effects_needs_no_outputs() -> None:
    tools = "tools: { send: { python: 'm:f', effect: write } }\n"

    assert [] == _warnings(f"{tools}steps: {{ a: {{ call: send }} }}\n")


@pytest.mark.parametrize(
    ("gen", "part"),
    [
        ('regex: "[a-z]+[.]"', "a match"),
        ("json: { type: string }", "the text that it is"),
        ("json: { type: array, items: { type: integer } }", "the list that it is"),
        ("json: { type: object, properties: { a: { type: string } } }", "the text a"),
        ("json: { type: array, maxItems: 3, items: { type: string } }", "the text []"),
        ("json: { anyOf: [{ type: integer }, { type: string }] }", "the text that it is"),
        ('json: { type: string, pattern: "^a*$" }', "the text that it is"),
    ],
)
def test_an_answer_to_which_nothing_sets_an_end_is_warned_of(gen: str, part: str) -> None:
    steps = f"steps: {{ a: {{ user: hi, gen: {{ {gen} }} }} }}\noutputs: {{ a: '${{ a }}' }}\n"

    (found,) = load_text(f"{HEAD}{steps}").diagnostics

    assert found.code == "WF157"
    assert f"nothing ends the answer: {part} may have any length" in found.message
    assert [] == _warnings(steps.replace("gen: { ", "gen: { max_tokens: 90, "))
    assert [] == _warnings("defaults: { gen: { max_tokens: 90 } }\n" + steps)


@pytest.mark.parametrize(
    "gen",
    [
        "",
        'regex: "[a-z]{1,60}"',
        "choice: [a, b]",
        "json: { type: string, maxLength: 60 }",
        "json: { type: string, enum: [a, b] }",
        'json: { type: array, maxItems: 3, items: { type: string, pattern: "^[a-z]{1,9}$" } }',
        "json: { type: object, properties: { a: { type: number }, b: { type: boolean } } }",
    ],
)
def test_an_answer_that_ends_by_itself_needs_no_max_tokens(gen: str) -> None:
    steps = f"steps: {{ a: {{ user: hi, gen: {{ {gen} }} }} }}\noutputs: {{ a: '${{ a }}' }}\n"

    assert [] == _warnings(steps)


@pytest.mark.parametrize(
    "keys",
    [
        "from: b # the first\n    gen:",
        "user: ${ b } # all of it\n    gen:",
        'user: "quoted" # and done\n    gen:',
        "user: hi\n    gen: # as it likes",
        "for: x in [1] # once\n    do: { c: { set: 1 } }",
    ],
)
def test_a_comment_behind_what_is_no_text_is_a_comment(keys: str) -> None:
    steps = f"steps:\n  b: {{ user: hi, gen: }}\n  a:\n    {keys}\n"

    assert [] == _warnings(steps + "outputs: { a: '${ a }', b: '${ b }' }\n")


def test_a_condition_without_its_braces_is_told_with_them() -> None:
    steps = "steps:\n  a: { set: 1 }\n  b: { set: 2, when: a != 1 }\noutputs: { b: '${ b }' }\n"

    (found,) = load_text(f"{HEAD}{steps}").diagnostics

    assert ("WF211", "write when: ${ a != 1 }") == (found.code, found.help)


MANY_VALUES = [
    "set: [" + "1, " * 60 + "1]",
    "set:\n" + "      - 1\n" * 60,
    "set: { " + ", ".join(f"k{i}: 'v'" for i in range(60)) + " }",
    "set: [" + '"\\x41", ' * 60 + "1]",
    "set: &a\n" + "      - ? k\n        : v\n" * 60,
]


@pytest.mark.parametrize("step", MANY_VALUES)
def test_a_file_of_too_many_values_is_refused_at_the_first_one_too_many(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reader in (yaml_document, yaml_composer, yaml_plain_reader):
        monkeypatch.setattr(reader, "MAX_VALUES", 50)
    text = f"{HEAD}steps:\n  a:\n    {step}\n"

    (diagnostic,) = load_text(text).diagnostics

    assert ("WF003", "the file holds more than 50 values") == (diagnostic.code, diagnostic.message)
    assert text.index("set:") < diagnostic.span.start < len(text) - 10


def test_both_readers_count_a_files_values_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        f"{HEAD}steps:\n  a:\n    set: {{ a: 1, 'b': [x, \"y\", [2]], c: }}\n"
        "  b:\n    set:\n      - k: |\n          text\n        l:\n      - 3\n"
    )
    source = Source("f.yaml", text)
    # The file, its two heads, the steps and two of them, and 8 and 5 values in these.
    for most, is_refused in ((19, False), (18, True)):
        for reader in (yaml_document, yaml_composer, yaml_plain_reader):
            monkeypatch.setattr(reader, "MAX_VALUES", most)

        plain, thorough = yaml_document.read_document(source), yaml_composer.compose(source)

        assert is_refused == (plain.root is None) == (thorough.root is None)
        assert plain.diagnostics == thorough.diagnostics


@dataclass(slots=True)
class Looks:
    """How many entries of a mapping were looked at so far."""

    count: int = 0


class CountedEntries(tuple[Entry, ...]):
    """Entries that count how often one of them is looked at."""

    looks: Looks

    def __iter__(self) -> Iterator[Entry]:
        for entry in super().__iter__():
            self.looks.count += 1
            yield entry


def test_a_slip_is_found_among_thousands_of_names_without_comparing_it_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []
    closest = difflib.get_close_matches

    def counted(word: str, names: list[str], n: int, cutoff: float) -> list[str]:
        compared.append(len(names))
        return closest(word, names, n, cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    names = [f"{letter}{idx}" for letter in "abxyz" for idx in range(1_000)]

    assert "opinion" == near_miss("opinoin", [*names, "opinion"])
    assert "Opinion" == near_miss("opinion", [*names, "Opinion"])
    assert compared
    assert max(compared) <= 200


def test_reading_a_schema_looks_at_each_key_a_few_times_however_many_there_are() -> None:
    span, num_keys = Span(0, 0), 2_000
    kind = Entry("type", span, ScalarNode(span, "string", "string", "plain"))
    entries = CountedEntries(
        Entry(f"field{idx}", span, MappingNode(span, (kind,))) for idx in range(num_keys)
    )
    entries.looks = Looks()

    schema = schema_of_node(MappingNode(span, entries))

    assert num_keys == len(schema)
    assert {"type": "string"} == schema["field7"]
    assert entries.looks.count <= 4 * num_keys
