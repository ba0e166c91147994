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
