"""Help for what people bring along from other systems, and no errors that only follow from one."""

from __future__ import annotations

import pytest

from flowforge.language.filters import FILTERS
from flowforge.language.foreign_words import help_for_filter, help_for_key
from flowforge.language.loader import load_text

HEAD = "flowforge: 1\nname: t\n"


def problems(steps: str) -> list[tuple[str, str | None]]:
    return [(one.code, one.help) for one in load_text(f"{HEAD}steps:\n{steps}").diagnostics]


@pytest.mark.parametrize(
    ("step", "help"),
    [
        ("{ prompt: hi, user: hi, gen: }", "'user' is what says it here"),
        ("{ messages: [], user: hi, gen: }", "'turns' is what says it here"),
        ("{ user: hi, gen: , depends_on: [b] }", "'after' is what says it here"),
        ("{ user: hi, gen: { schema: string } }", "'json' is what says it here"),
        ("{ user: hi, gen: { max_token: 3 } }", "did you mean 'max_tokens'?"),
    ],
)
def test_a_key_of_another_system_is_answered_with_the_one_that_says_it(
    step: str, help: str
) -> None:
    assert problems(f"  a: {step}\noutputs: {{ a: '${{ a }}' }}\n") == [("WF101", help)]


def test_a_word_stands_for_another_one_only_where_that_may_be() -> None:
    assert help_for_key("inputs", ("run", "with"), "known keys: …") == "'with' is what says it here"
    assert help_for_key("input", ("inputs", "steps"), "known keys: …") == "did you mean 'inputs'?"
    assert help_for_key("prompt", ("set", "after"), "known keys: …") == "known keys: …"


def test_every_filter_that_is_pointed_to_is_there() -> None:
    for word in ("map", "selectattr", "length", "tojson", "strip", "fromjson"):
        help = help_for_filter(word, FILTERS)

        assert help is not None
        assert help.removeprefix("the filter for it is ").strip("'") in FILTERS
    assert help_for_filter("joyn", FILTERS) == "did you mean 'join'?"


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("draft.text", "the value is the text itself: leave '.text' out"),
        ("steps.draft", "the value of a step is read by the step's name alone, as in ${ draft }"),
        ("drafts", "did you mean 'draft'?"),
        ("Paris", "names in scope: a, draft, inputs; a text has quotes"),
    ],
)
def test_a_value_that_is_read_the_wrong_way_is_answered_with_the_right_one(
    text: str, help: str
) -> None:
    steps = f"  draft: {{ user: hi, gen: }}\n  a: {{ set: '${{ {text} }}' }}\n"

    assert [found for _, found in problems(steps)] == [help]


def test_nothing_more_is_said_of_what_reads_an_answer_with_a_broken_schema() -> None:
    steps = (
        "  a: { user: hi, gen: { json: { type: object, properties: { x: { type: strng } } } } }\n"
        "outputs: { x: '${ a.x.y | upper }' }\n"
    )

    assert [code for code, _ in problems(steps)] == ["WF119"]


@pytest.mark.parametrize(
    ("word", "help"),
    [
        ("str", "the type for it is 'string'"),
        ("Float", "the type for it is 'number'"),
        ("dict", "the type for it is 'object'"),
        ("array<string>", "write { type: array, items: { type: string } }"),
        ("list[int]", "write { type: array, items: { type: integer } }"),
        ("string[]", "write { type: array, items: { type: string } }"),
        ("string?", 'write { type: [string, "null"] }'),
        ("str | None", 'write { type: [string, "null"] }'),
        ("Optional[int]", 'write { type: [integer, "null"] }'),
        ("strng", "did you mean 'string'?"),
    ],
)
@pytest.mark.parametrize("place", ["input", "field of an input", "answer", "field of an answer"])
def test_a_type_as_another_language_writes_it_is_answered_with_ours(
    place: str, word: str, help: str
) -> None:
    field = f"{{ type: object, properties: {{ x: {{ type: {word!r} }} }} }}"
    inputs = {"input": repr(word), "field of an input": field}.get(place, "string")
    json = {"answer": repr(word), "field of an answer": field}.get(place, "boolean")
    text = (
        f"{HEAD}inputs: {{ i: {inputs} }}\n"
        f"steps: {{ a: {{ user: hi, gen: {{ json: {json} }} }} }}\noutputs: {{ a: '${{ a }}' }}\n"
    )

    assert [one.help for one in load_text(text).diagnostics] == [help]


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("None", "write 'null'"),
        ("a.x == True", "write 'true'"),
        ("env.HOME", "the environment is not read: declare an input, and give it with the run"),
        ("a.x is null", "'==' and '!=' compare, also with null"),
        ("a.x[0:3]", "there are no slices: head, tail and truncate cut"),
        ("[y for y in a.x]", "'for' is a step; pluck and where work on lists"),
        ("a.x ~ 1", "texts are joined by writing them side by side, or with 'join'"),
        ("7 // 2", "'/' gives a fraction, which 'round' makes whole"),
        ('f"{a.x}"', "an operator is missing before the text"),
        ('{"x": 1}', "an expression holds no '{': quote texts, and write objects in YAML"),
    ],
)
def test_an_expression_of_another_language_is_answered_with_ours(text: str, help: str) -> None:
    steps = f"  a: {{ call: t, with: {{}} }}\n  b: {{ set: '${{ {text} }}' }}\n"
    head = HEAD + "tools: { t: { python: 'm:f', returns: object } }\n"

    diagnostics = load_text(f"{head}steps:\n{steps}outputs: {{ b: '${{ b }}' }}\n").diagnostics

    assert [one.help for one in diagnostics] == [help]


@pytest.mark.parametrize(
    "step",
    [
        "{ prompt: hi, gen: }",
        "{ usr: hi, gen: }",
        "{ messages: [{ role: user, content: hi }], gen: }",
        "{ turns: [{ role: user, user: hi }], gen: }",
        "{ gen: Write a poem. }",
        "{ set: '${ 1 + }' }",
    ],
)
def test_of_one_mistake_one_thing_is_said(step: str) -> None:
    found = problems(f"  a: {step}\noutputs: {{ a: '${{ a }}' }}\n")

    assert len(found) == 1


def test_a_text_in_place_of_options_is_told_where_it_belongs() -> None:
    assert problems("  a: { gen: Write a poem. }\noutputs: { a: '${ a }' }\n") == [
        ("WF107", "what is said to the model stands under 'user', beside 'gen:'")
    ]


def test_nothing_is_said_of_what_reads_a_broken_expression() -> None:
    steps = "  a: { set: '${ 1 + }' }\n  b: { set: '${ a.b.c | upper }' }\n"

    assert [code for code, _ in problems(steps + "outputs: { b: '${ b }' }\n")] == ["WF201"]


def test_a_name_that_the_language_has_taken_is_told_once() -> None:
    assert problems("  inputs: { set: 1 }\noutputs: { a: 1 }\n")[0] == (
        "WF105",
        "choose another name",
    )


def test_a_list_under_for_is_given_a_variable() -> None:
    steps = "  a:\n    for: ${ inputs.x }\n    do: { b: { set: 1 } }\noutputs: { a: '${ a }' }\n"

    assert problems(steps)[0] == ("WF107", "write for: item in inputs.x")


def test_a_schema_that_is_a_word_is_told_with_its_braces() -> None:
    steps = "  a: { user: x, gen: { json: { type: object, properties: { n: string } } } }\n"

    assert problems(steps + "outputs: { a: '${ a }' }\n") == [
        ("WF119", "write n: { type: string }")
    ]


def test_lines_that_are_indented_like_no_other_are_told_so() -> None:
    text = f"{HEAD}steps:\n  a:\n    user: x\n   gen: {{}}\n"

    (problem,) = load_text(text).diagnostics

    assert problem.message == "the line is indented like none of the lines above it"
    assert problem.help == "indent it as far as the lines that it belongs to"


def test_an_empty_list_is_called_empty() -> None:
    steps = "steps: { a: { user: x, gen: { choice: [] } } }\noutputs: { a: '${ a }' }\n"

    (problem,) = load_text(HEAD + steps).diagnostics

    assert problem.message == "'choice' must be a list of texts, got an empty list"


@pytest.mark.parametrize(
    "rest",
    [
        "outputs: { r: draft }",
        "  b: { set: [draft] }\noutputs: { r: '${ b }' }",
        "  b: { for: 'x in [1]', do: { c: { set: 1 } }, yield: draft }\noutputs: { r: '${ b }' }",
    ],
)
def test_a_step_that_is_used_by_its_name_alone_is_told_with_braces(rest: str) -> None:
    found = problems(f"  draft: {{ user: hi, gen: }}\n{rest}\n")

    assert ("WF152", "its name stands somewhere as a text: ${ draft } is its value") in found
