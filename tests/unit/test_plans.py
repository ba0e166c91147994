"""Plans of small programs, with characters for tokens."""

from __future__ import annotations

import pytest
from planned_texts import HEAD, CharText, plan_of

from flowforge.cli.plan_text import text_of_plan
from flowforge.errors import WorkflowError
from flowforge.language.loader import load_text, require_program
from flowforge.planning import plan_program
from flowforge.planning.answer_size import bytes_of_regex, bytes_of_schema
from flowforge.planning.quantity import UNBOUNDED, Quantity, exactly

FORK = """
steps:
  a: { system: Hi., user: Go., gen: { max_tokens: 5 } }
  b: { from: a, user: On., gen: { max_tokens: 5 } }
  c: { user: "Of ${ b }", gen: { max_tokens: 5 } }
outputs: { c: "${ c }" }
"""

SHOWN = """\
plan of 'planned'

step    prompt  prefilled    reused  generated   pages  reused from
a           11         11         0     1 to 5       1  -
b     18 to 23     7 to 8  11 to 16     1 to 5  1 to 2  a
c      3 to 15    3 to 15   0 to 12     1 to 5  1 to 2  -

prefilled      21 to 34 tokens
reused         11 to 28 tokens
generated      3 to 15 tokens
critical path  3 to 15 decode steps
pages at peak  1 to 4 of 16 tokens each, 9 there: fits
context        1,000 tokens: fits, the longest sequence has 23 to 28

read as text and computed again (only 'from' brings KV along):
  c reads b: 0 to 5 tokens
"""


def test_a_known_prompt_is_counted_to_the_token() -> None:
    plan = plan_of(FORK)

    # Two turns of a role, three characters and a close, then the role of the answer.
    assert exactly(11) == plan.generations[0].prompt
    assert exactly(11) == plan.generations[0].prefilled
    assert exactly(0) == plan.generations[0].reused


def test_a_fork_computes_the_end_of_the_answer_and_what_is_said_after_it() -> None:
    fork = plan_of(FORK).generations[1]

    # The last token, the close after a cut-off answer, then role, text, close and role.
    assert Quantity(1 + 6, 2 + 6) == fork.prefilled
    assert "a" == fork.continues
    assert "a" == fork.reused_from


def test_a_value_read_as_text_is_computed_again_and_said_so() -> None:
    plan = plan_of(FORK)

    (again,) = plan.read_again
    assert ("c", ("b",), Quantity(0, 5)) == (again.path, again.origins, again.tokens)


def test_the_critical_path_follows_values_and_conversations() -> None:
    assert Quantity(3, 15) == plan_of(FORK).cost.decode_steps


def test_branches_run_beside_each_other_as_far_as_their_limit_lets_them() -> None:
    branches = """
steps:
  a:
    for: word in ["x", "y", "z", "w"]
    LIMIT
    do: { b: { user: "${ word }", gen: { max_tokens: 8 } } }
outputs: { a: "${ a }" }
"""
    assert 8 == plan_of(branches.replace("LIMIT", "")).cost.decode_steps.most
    assert 16 == plan_of(branches.replace("LIMIT", "limit: 2")).cost.decode_steps.most


def test_of_two_branches_that_the_model_chooses_from_the_dearer_is_the_most() -> None:
    plan = plan_of("""
steps:
  a: { user: A?, gen: { choice: [long, short] } }
  b:
    switch: ${ a }
    cases:
      long: { c: { user: Much more than that., gen: { max_tokens: 9 } } }
      short: { d: { user: B., gen: { max_tokens: 2 } } }
outputs: { b: "${ b ?? '' }" }
""")

    first, long, short = plan.generations
    assert [True, False, False] == [one.is_certain for one in plan.generations]
    assert first.prefilled.least + short.prefilled.least == plan.cost.prefilled.least
    assert first.prefilled.least + (long.prefilled.most or 0) == plan.cost.prefilled.most


def test_what_a_branch_leaves_behind_is_not_counted_on_outside_of_it() -> None:
    plan = plan_of("""
steps:
  a: { user: A?, gen: { choice: ["yes", "no"] } }
  b: { when: "${ a == 'yes' }", user: The same prompt., gen: { max_tokens: 3 } }
  c: { after: [b], user: The same prompt., gen: { max_tokens: 3 } }
outputs: { c: "${ c }" }
""")

    # The role and no more is common with the first prompt.
    assert Quantity(0, 18) == plan.generations[2].prefilled


def test_a_tool_gives_any_amount_of_text() -> None:
    plan = plan_of("""
tools: { look: { python: "shop:look", effect: read, returns: string } }
steps:
  found: { call: look, with: {} }
  a: { user: "${ found }", gen: { max_tokens: 3 } }
outputs: { a: "${ a }" }
""")

    assert plan.cost.prefilled.most is None
    assert plan.cost.prefilled.may_exceed(1_000_000)
    assert "may not fit" == plan.context_fit


@pytest.mark.parametrize(
    "join", ["settle", "first", "vote", "{ quorum: 2 }", "{ best: '${ value | len }' }"]
)
def test_a_branch_that_fails_for_certain_is_planned_where_the_run_outlives_it(join: str) -> None:
    plan = plan_of(f"""
steps:
  a:
    for: number in [1, 0, 2]
    join: {join}
    do:
      b: {{ user: "Round ${{ number }}", gen: {{ max_tokens: 3 }} }}
      c: {{ set: "${{ 10 / number }}", after: b }}
      d: {{ user: "${{ b }} and ${{ c }}", gen: {{ max_tokens: 3 }} }}
    yield: ${{ d }}
outputs: {{ a: "${{ a }}" }}
""")

    (problem,) = plan.problems
    assert problem.startswith("a[1]: division by zero")
    path_to_certain = {one.path: one.is_certain for one in plan.generations}
    assert {"a[0]/b", "a[0]/d", "a[1]/b", "a[2]/b", "a[2]/d"} == path_to_certain.keys()
    assert not path_to_certain["a[1]/b"]
    assert path_to_certain["a[2]/d"]


def test_a_branch_that_fails_for_certain_fails_the_plan_where_it_fails_the_run() -> None:
    with pytest.raises(WorkflowError, match="division by zero"):
        plan_of("""
steps:
  a: { for: "number in [1, 0]", do: { b: { set: "${ 10 / number }" } } }
outputs: { a: "${ a }" }
""")


def test_retries_and_catches_are_in_the_most_and_not_in_the_least() -> None:
    text = """
steps:
  a: { user: Ask., gen: { max_tokens: 4 }, EXTRA }
outputs: { a: "${ a }" }
"""
    plain = plan_of(text.replace(", EXTRA", ""))
    retried = plan_of(text.replace("EXTRA", "retry: { attempts: 3 }"))

    assert plain.cost.generated.least == retried.cost.generated.least
    assert 3 * (plain.cost.generated.most or 0) == retried.cost.generated.most


def test_a_prompt_larger_than_the_context_does_not_fit() -> None:
    plan = plan_of("""
inputs: { long: string }
steps: { a: { user: "${ inputs.long }", gen: { max_tokens: 3 } } }
outputs: { a: "${ a }" }
""", long="x" * CharText.context_len)  # fmt: skip

    assert "does not fit" == plan.context_fit


@pytest.mark.parametrize(("num_pages", "fit"), [(None, None), (1, "does not fit"), (99, "fits")])
def test_pages_are_judged_against_those_that_there_are(
    num_pages: int | None, fit: str | None
) -> None:
    assert fit == plan_of(FORK.replace("Hi.", "Hello there to you."), num_pages=num_pages).pool_fit


def test_a_step_whose_conversation_is_let_go_leaves_its_pages_to_later_ones() -> None:
    chain = """
steps:
  a: { user: One., gen: { max_tokens: 5 } }
  b: { user: "${ a }", gen: { max_tokens: 5 } }
  c: { user: "${ b }", gen: { max_tokens: 5 } }
outputs: { c: "${ c }" }
"""
    assert plan_of(chain).cost.pages.most == 1


def test_a_failure_that_is_certain_is_the_plans_own() -> None:
    with pytest.raises(WorkflowError, match="beyond the list"):
        plan_of("""
inputs: { words: { type: array, items: { type: string }, default: [] } }
steps: { a: { user: "${ inputs.words[3] }", gen: {} } }
outputs: { a: "${ a }" }
""")


def test_a_failure_that_only_a_branch_would_meet_is_told_beside_the_plan() -> None:
    plan = plan_of("""
inputs: { words: { type: array, items: { type: string }, default: [] } }
steps:
  a: { user: A?, gen: { choice: ["yes", "no"] } }
  b: { when: "${ a == 'yes' }", user: "${ inputs.words[3] }", gen: {} }
outputs: { b: "${ b ?? '' }" }
""")

    assert 1 == len(plan.problems)
    assert "b: index 3 is beyond the list" in plan.problems[0]


def test_a_plan_without_end_is_refused() -> None:
    with pytest.raises(WorkflowError, match="more than 10,000 generations") as caught:
        plan_of("""
steps:
  a:
    loop: { n: 0 }
    max: 6000
    do:
      b: { user: "${ n }", gen: { max_tokens: 1 } }
      c: { user: "${ n }", gen: { max_tokens: 1 } }
    next: { n: "${ n + 1 }" }
outputs: { a: "${ a.n }" }
""")

    assert "WF527" == caught.value.code


@pytest.mark.parametrize(
    ("schema", "size"),
    [
        ({"const": "yes"}, exactly(5)),
        ({"enum": ["a", "bcd"]}, Quantity(3, 5)),
        ({"type": "boolean"}, Quantity(4, 5)),
        ({"type": "string", "maxLength": 2}, Quantity(2, 14)),
        ({"type": "string", "pattern": "^[a-z]{3,5}$"}, Quantity(2, 7)),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, Quantity(2, 14)),
        ({"type": "string"}, Quantity(2, None)),
    ],
)
def test_a_schema_bounds_the_bytes_of_its_json(schema: dict[str, object], size: Quantity) -> None:
    assert size == bytes_of_schema(schema)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("regex", "size"),
    [("[1-9]", exactly(1)), ("[a-z]{2,4}", Quantity(2, 4)), (".{2}", Quantity(2, 12))],
)
def test_a_regex_bounds_the_bytes_of_its_text(regex: str, size: Quantity) -> None:
    assert size == bytes_of_regex(regex)


def test_a_regex_without_end_bounds_nothing() -> None:
    assert UNBOUNDED.most == bytes_of_regex("a+").most


def test_a_plan_is_written_as_a_table_and_its_totals() -> None:
    assert SHOWN == text_of_plan(plan_of(FORK, num_pages=9))


def test_a_failure_that_a_catch_takes_does_not_end_the_plan() -> None:
    plan = plan_of("""
inputs: { words: { type: array, items: { type: string }, default: [] } }
steps:
  a: { user: "${ inputs.words[3] }", gen: {}, catch: { else: none } }
outputs: { a: "${ a }" }
""")

    assert exactly(0) == plan.cost.prefilled
    assert 1 == len(plan.problems)


TWO_MODELS = """
steps:
  a: { user: Name three., gen: { max_tokens: 9 } }
  b: { user: Name three., gen: { max_tokens: 9 }, model: large }
  c: { from: b, user: More., gen: { max_tokens: 4 } }
  d: { user: "Merge ${ a }", gen: { max_tokens: 4 } }
  e: { user: "Merge ${ a }", gen: { max_tokens: 4 }, model: large }
outputs: { all: "${ [c, d, e] }" }
"""


def test_models_share_no_prefix_and_count_texts_of_each_other_by_no_bound() -> None:
    program = require_program(load_text(HEAD + TWO_MODELS))

    plan = plan_program(program, {}, CharText(), others={"large": CharText()})
    of = {one.path: one for one in plan.generations}

    assert (None, "large", "large") == (of["a"].model, of["b"].model, of["c"].model)
    assert of["a"].prefilled == of["b"].prefilled
    assert exactly(0) == of["b"].reused
    assert "b" == of["c"].reused_from
    assert of["d"].prompt.most is not None
    assert of["e"].prompt.most is None


def test_one_model_under_two_names_computes_a_prompt_once() -> None:
    program = require_program(load_text(HEAD + TWO_MODELS))
    model = CharText()

    plan = plan_program(program, {}, model, others={"large": model})
    of = {one.path: one for one in plan.generations}

    assert 1 == of["b"].prefilled.most
    assert of["e"].prompt == of["d"].prompt


def test_a_prompt_is_held_against_the_context_of_its_own_model() -> None:
    class SmallText(CharText):
        context_len = 12

    program = require_program(load_text(HEAD + TWO_MODELS))

    plan = plan_program(program, {}, CharText(), others={"large": SmallText()})

    assert "does not fit" == plan.context_fit
    assert plan.problems == (
        "b: prompt and answer may have 23 tokens or more, and the context has 12",
        "c: prompt and answer may have 27 tokens or more, and the context has 12",
    )
