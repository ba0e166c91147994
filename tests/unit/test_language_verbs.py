"""Every verb and common key: what the program says of it, the types it gives, what is in scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.language.join_policies import All, Best, Quorum, Settle, Vote
from flowforge.language.loader import load_text, require_program
from flowforge.language.program import (
    Ask,
    Block,
    Call,
    ForEach,
    Gen,
    If,
    Loop,
    Parallel,
    Retry,
    Switch,
    WrittenTurn,
)
from flowforge.language.types import display_type

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue, Program, Step

HEAD = (
    "flowforge: 1\nname: t\n"
    "inputs: { topic: string, items: { type: array, items: { type: string } } }\n"
)
CHOSEN = "  kind: { user: hi, gen: { choice: [bug, question] } }\n"


def program(steps: str, head: str = HEAD) -> Program:
    return require_program(load_text(f"{head}steps:\n{steps}"))


def step(text: str) -> Step:
    return program(f"{CHOSEN}  s: {text}\n").steps["s"]


def problems(steps: str, head: str = HEAD) -> list[tuple[str, str | None]]:
    diagnostics = load_text(f"{head}steps:\n{steps}").diagnostics
    return [(one.code, one.help) for one in diagnostics]


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ('"bug" | "question"', "{ set: '${ kind }' }"),
        (
            "{a: integer, b: array<string | integer>}",
            "{ set: {a: 1, b: ['${ inputs.topic }', 2]} }",
        ),
        ("integer | null", "{ set: 1, when: '${ kind == \"bug\" }' }"),
        ("number", "{ set: '${ 1 / 2 }' }"),
        ("integer", "{ set: '${ (inputs.items | len) * 2 - 1 }' }"),
        ("array<string>", "{ set: '${ inputs.items | append(inputs.topic) | tail(2) }' }"),
        ("array<string>", "{ user: hi, gen: { n: 3, pick: all } }"),
        ("string", "{ user: hi, gen: { n: 3, pick: majority } }"),
        ("string", "{ user: hi, gen: { n: 3, pick: best } }"),
        ("string", "{ user: hi, gen: { regex: '[a-z]+' } }"),
        ("string | null", "{ if: true, then: { a: { user: hi, gen: } } }"),
        ('"x" | "y"', "{ if: true, then: { a: { set: x } }, else: { a: { set: y } } }"),
        (
            '"b" | integer',
            (
                "{ switch: '${ kind }', cases: { bug: { a: { set: b } } }, "
                "default: { a: { set: 2 } } }"
            ),
        ),
        ("{a: integer, b: string}", "{ parallel: { a: { set: 1 }, b: { user: hi, gen: } } }"),
        (
            "{a?: integer, b?: string}",
            ("{ parallel: { a: { set: 1 }, b: { user: hi, gen: } }, join: { quorum: 1 } }"),
        ),
        ("integer | string", "{ parallel: { a: { set: 1 }, b: { user: hi, gen: } }, join: first }"),
        ("array<integer>", "{ for: x in inputs.items, do: { a: { set: 1 } } }"),
        ("integer", "{ for: x in inputs.items, do: { a: { set: 1 } }, join: vote }"),
        ("array<boolean>", "{ for: x in (s0 | pluck('ok')), do: { a: { set: '${ x }' } } }"),
        (
            "{n: integer, last: string | null}",
            (
                "{ loop: { n: 0, last: null }, max: 3, "
                "until: '${ a == \"x\" }', do: { a: { user: '${ n }', gen: } }, "
                "next: { n: '${ n + 1 }', last: '${ a }' } }"
            ),
        ),
        (
            "{l: array<string>}",
            (
                "{ loop: { l: [] }, max: 3, do: { a: { user: '${ l | text }', gen: } }, "
                "next: { l: '${ l | append(a) }' } }"
            ),
        ),
        ('"yes" | "no"', "{ ask: ok?, choices: [yes, no] }"),
        ("string", "{ ask: why? }"),
        ("string | integer", "{ user: hi, gen: , catch: { else: 0 } }"),
        ("string", "{ user: hi, gen: , catch: { do: { a: { user: '${ error.code }', gen: } } } }"),
        ("string | null", "{ from: maybe, gen: }"),
    ],
)
def test_a_steps_type_is_known(type_: str, text: str) -> None:
    others = (
        f"{CHOSEN}  maybe: {{ user: hi, gen: , when: '${{ kind == \"bug\" }}' }}\n"
        "  s0: { for: x in inputs.items, join: settle, do: { b: { user: hi, gen: } } }\n"
    )

    found = program(f"{others}  s: {text}\n").steps["s"]

    assert type_ == display_type(found.type)


@pytest.mark.parametrize(
    ("codes", "text"),
    [
        # What is read has to be in scope, and what may be null taken care of.
        (["WF202"], "  a: { if: true, then: { b: { set: 1 } } }\n  c: { set: '${ b }' }\n"),
        (["WF202"], "  a: { parallel: { x: { set: 1 }, y: { set: '${ x }' } } }\n"),
        (["WF104"], "  a: { parallel: { x: { user: hi, gen: }, y: { from: x, gen: } } }\n"),
        (
            ["WF202"],
            (
                "  a: { loop: { n: 1 }, max: 2, while: '${ b }', do: { b: { set: true } }, "
                "next: { n: 2 } }\n"
            ),
        ),
        (["WF208"], "  a: { set: 1, when: true }\n  b: { user: '${ a }', gen: }\n"),
        (["WF206"], "  a: { set: '${ inputs.topic + 1 }' }\n"),
        (["WF206"], "  a: { set: 1, when: '${ inputs.topic }' }\n"),
        (
            ["WF206"],
            "  a: {for: x in inputs.items, do: {b: {set: 1}}, join: {best: '${ inputs.topic }'}}\n",
        ),
        (["WF211"], "  a: { set: 1, when: '${ true } == true' }\n"),
        (["WF211"], "  a: { set: 1, when: done }\n"),
        (["WF111"], "  a: { user: hi, gen: { n: 2, pick: all } }\n  b: { from: a, gen: }\n"),
        (["WF115"], "  a: { set: 1, after: b }\n  b: { set: 2, after: a }\n"),
        (["WF115"], "  a: { set: 1, when: '${ a == 1 }' }\n"),
        (["WF108"], "  a: { parallel: { x: { set: 1 } }, join: { quorum: 2 } }\n"),
        (["WF108"], "  a: { for: 'i in [1]', do: { x: { set: 1 } }, join: { quorum: 2 } }\n"),
        (["WF108"], "  a: { for: 'i in []', do: { x: { set: 1 } }, join: first }\n"),
        (["WF108"], "  a: { for: 'i in ${ [] }', do: { x: { set: 1 } }, join: vote }\n"),
        (["WF108"], "  a: { for: 'i in []', do: { x: { set: 1 } }, join: { best: '${ 1 }' } }\n"),
        (["WF116"], "  a: { if: true, then: { b: { set: 1 }, c: { set: 2 } } }\n"),
        (
            ["WF106"],
            (
                "  n: { set: 1 }\n  a: { loop: { n: 1 }, max: 2, do: { b: { set: 1 } }, "
                "next: { n: 2 } }\n"
            ),
        ),
        (["WF106"], "  a: { set: 1 }\n  b: { set: 2, catch: { as: a, else: 3 } }\n"),
        (["WF105"], "  do: { set: 1 }\n"),
        (
            ["WF107"],
            "  a: { loop: { n: 1 }, max: 2, on_max: keep, do: {b: {set: 1}}, next: {n: 2} }\n",
        ),
        (["WF113"], "  a: { turns: [{ user: hi, assistant: ho }], gen: }\n"),
        (
            ["WF113"],
            "  a: { user: hi, gen: }\n  b: { from: a, turns: [{ user: x, gen: }], gen: }\n",
        ),
        (["WF110"], "  a: { set: 1, ask: why? }\n"),
    ],
)
def test_what_cannot_be_meant_is_refused(codes: list[str], text: str) -> None:
    found = [code for code, _ in problems(text)]

    assert codes == found


@pytest.mark.parametrize("rounds", ["0", "-1", "10000000", "many", "1.5"])
def test_a_loop_is_bounded_by_a_number_of_rounds(rounds: str) -> None:
    """WF-054."""
    text = (
        f"  a: {{ loop: {{ n: 1 }}, max: {rounds}, do: {{ b: {{ set: 1 }} }}, next: {{ n: 2 }} }}\n"
    )

    assert problems(text)[0][0] in ("WF107", "WF108")


def test_a_loop_fails_at_its_last_round_unless_it_says_to_keep() -> None:
    """WF-052."""
    text = (
        "{{ loop: {{ n: 1 }}, max: 25, {}do: {{ b: {{ set: true }} }}, next: {{ n: '${{ n }}' }} }}"
    )

    failing = step(text.format("while: true, ")).verb
    keeping = step(text.format("while: true, on_max: keep, ")).verb
    counting = step(text.format("")).verb

    assert isinstance(failing, Loop)
    assert isinstance(keeping, Loop)
    assert isinstance(counting, Loop)
    assert ("fail", "keep", "keep") == (failing.on_max, keeping.on_max, counting.on_max)
    assert (25, 25, 25) == (failing.max_rounds, keeping.max_rounds, counting.max_rounds)


def test_needs_hold_what_every_key_and_block_reads_from_outside() -> None:
    found = program(
        """\
  a: { set: 1 }
  b: { set: 2 }
  c: { set: true }
  d: { set: 3 }
  e: { user: hi, gen: }
  x:
    for: i in inputs.items
    when: ${ c }
    after: d
    do:
      y: { from: e, user: "${ i } ${ a }", gen: }
      z: { set: "${ y }" }
    yield: [ "${ z }", "${ b }" ]
"""
    ).steps["x"]

    assert frozenset("abcde") == found.needs
    assert frozenset("d") == found.after


def test_common_keys_are_read_with_their_units() -> None:
    found = step(
        "{ user: hi, gen: , timeout: 1m30s, priority: -2, "
        "retry: { attempts: 4, backoff: 500ms, factor: 3, max: 1m, jitter: none }, "
        "catch: { codes: [WF5, TL], else: none }, finally: { f: { set: 1 }, g: { set: 2 } } }"
    )

    assert (90.0, -2) == (found.timeout_s, found.priority)
    assert Retry(4, 0.5, 3.0, 60.0, "none") == found.retry
    assert found.catch is not None
    assert ("error", ("WF5", "TL")) == (found.catch.variable, found.catch.codes)
    assert found.finally_block is not None
    assert ["f", "g"] == list(found.finally_block.steps)


def test_a_number_of_attempts_is_a_retry() -> None:
    assert Retry(3, 1.0, 2.0, 30.0, "full") == step("{ user: hi, gen: , retry: 3 }").retry


def test_defaults_hold_where_a_step_is_silent() -> None:
    head = (
        "flowforge: 1\nname: t\ndefaults: { gen: { temperature: 0, max_tokens: 9 }, retry: 2, "
        "timeout: 5s, model: small }\n"
    )
    whole = program(
        "  a: { user: hi, gen: }\n"
        "  b: { user: hi, gen: { temperature: 1 }, retry: 1, timeout: 1s, model: large }\n"
        "  c: { set: 1 }\n",
        head,
    )
    steps = whole.steps
    a, b, c = steps["a"], steps["b"], steps["c"]

    assert isinstance(a.verb, Gen)
    assert isinstance(b.verb, Gen)
    assert "small" == whole.model
    assert (0.0, 9, None) == (
        a.verb.sampling.temperature,
        a.verb.sampling.max_tokens,
        a.verb.model,
    )
    assert (1.0, 9, "large") == (
        b.verb.sampling.temperature,
        b.verb.sampling.max_tokens,
        b.verb.model,
    )
    assert (5.0, 1.0, None) == (a.timeout_s, b.timeout_s, c.timeout_s)
    assert a.retry is not None
    assert b.retry is not None
    assert (2, 1, None) == (a.retry.attempts, b.retry.attempts, c.retry)


@pytest.mark.parametrize(
    ("join", "text"),
    [(All(), "all"), (Settle(), "settle"), (Vote(), "vote"), (Quorum(2), "{ quorum: 2 }")],
)
def test_a_join_policy_is_a_word(join: object, text: str) -> None:
    verb = step(f"{{ for: x in inputs.items, do: {{ a: {{ set: 1 }} }}, join: {text} }}").verb

    assert isinstance(verb, ForEach)
    assert join == verb.join


def test_best_scores_each_value_with_the_names_around() -> None:
    verb = step(
        "{ parallel: { a: { set: short }, b: { do: { c: { user: hi, gen: }, d: { set: 1 } }, "
        "yield: '${ c }' } }, join: { best: '${ (value | len) + (inputs.items | len) }' } }"
    ).verb

    assert isinstance(verb, Parallel)
    assert isinstance(verb.join, Best)
    scope: dict[str, JsonValue] = {"value": "four", "inputs": {"items": ["x"]}}
    assert 5 == verb.join.score.evaluate(scope)
    assert ["c", "d"] == list(verb.branches["b"].steps)


def test_switch_reads_cases_as_values_of_the_subjects_type() -> None:
    verb = step(
        "{ switch: '${ inputs.items | len }', cases: { 0: { a: { set: none } }, "
        "1: { a: { set: one } } }, default: { a: { set: many } } }"
    ).verb

    assert isinstance(verb, Switch)
    assert [0, 1] == [case.value for case in verb.cases]


def test_the_help_of_a_switch_names_the_missing_cases_and_the_near_miss() -> None:
    text = CHOSEN + "  s: { switch: '${ kind }', cases: { bugs: { a: { set: 1 } } } }\n"

    diagnostics = load_text(f"{HEAD}steps:\n{text}").diagnostics

    assert [
        ("WF123", '\'switch\' has no case for "bug", "question"'),
        ("WF124", '\'bugs\' is never the value, which is "bug" | "question"'),
    ] == [(one.code, one.message) for one in diagnostics]
    assert "did you mean 'bug'?" == diagnostics[1].help


def test_a_comparison_with_a_choice_that_is_none_is_warned_of() -> None:
    steps = CHOSEN + "  s: { set: 1, when: '${ kind == \"bgu\" }' }\n"
    found = problems(steps + "outputs: { s: '${ s }' }\n")

    assert [("WF212", "did you mean 'bug'?")] == found


def test_turns_are_said_written_or_computed() -> None:
    listed = step(
        "{ turns: [{ user: q, assistant: a }, { user: plan, gen: { max_tokens: 5 }, as: plan }], "
        "user: 'Now do ${ plan }', prefill: 'Sure', gen: }"
    ).verb
    computed = program(
        "  h: { set: [{ user: hi, assistant: ho }] }\n"
        "  s: { turns: '${ h | tail(3) }', user: next, gen: }\n"
    ).steps["s"]

    assert isinstance(listed, Gen)
    assert isinstance(listed.turns, tuple)
    assert ["user", "assistant", "user"] == [
        turn.role for turn in listed.turns if not isinstance(turn, WrittenTurn)
    ]
    assert isinstance(listed.turns[3], WrittenTurn)
    assert "plan" == listed.turns[3].name
    assert frozenset("h") == computed.needs


def test_named_types_are_written_out_where_they_are_used() -> None:
    head = """\
flowforge: 1
name: t
types:
  Note: { type: object, required: [text], properties: { text: { type: string } } }
  Notes: { type: array, items: { $ref: '#/types/Note' } }
inputs: { first: Note }
tools: { find: { python: 'm:f', returns: Notes } }
"""
    found = program(
        "  a: { user: hi, gen: { json: Notes } }\n"
        "  b: { call: find }\n"
        "  c: { set: '${ inputs.first.text }' }\n",
        head,
    )

    note = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
    verb = found.steps["a"].verb
    assert isinstance(verb, Gen)
    assert {"type": "array", "items": note} == verb.json_schema
    assert ["array<{text: string}>"] * 2 == [
        display_type(found.steps[name].type) for name in ("a", "b")
    ]
    assert "string" == display_type(found.steps["c"].type)
    call = found.steps["b"].verb
    assert isinstance(call, Call)
    assert "write" == found.tools[call.tool].effect


def test_types_that_double_each_other_are_too_large_and_not_slow() -> None:
    types = "".join(
        f"  T{i}: {{ type: object, properties: {{ a: {{ $ref: '#/types/T{i + 1}' }}, "
        f"b: {{ $ref: '#/types/T{i + 1}' }} }} }}\n"
        for i in range(40)
    )
    head = f"flowforge: 1\nname: t\ntypes:\n{types}  T40: {{ type: string }}\n"

    diagnostics = load_text(f"{head}steps: {{ a: {{ set: 1 }} }}\n").diagnostics

    assert diagnostics
    assert any("larger than" in one.message for one in diagnostics)


def test_if_and_ask_say_what_they_were_given() -> None:
    gate = step(
        "{ if: '${ kind == \"bug\" }', then: { a: { ask: 'Ship ${ inputs.topic }?', "
        "show: { t: '${ inputs.topic }' }, choices: [yes, no], timeout: 2h, on_timeout: no } } }"
    ).verb

    assert isinstance(gate, If)
    ask = gate.then.steps["a"].verb
    assert isinstance(ask, Ask)
    assert (("yes", "no"), 7200.0, "no") == (ask.choices, ask.timeout_s, ask.on_timeout)
    assert ask.show is not None
    assert {"t": "x"} == ask.show.evaluate({"inputs": {"topic": "x"}})


def test_a_catch_with_a_block_yields_what_the_block_yields() -> None:
    catch = step("{ set: 1, catch: { as: e, do: { a: { set: '${ e.code }' } } } }").catch

    assert catch is not None
    assert isinstance(catch.body, Block)
    assert "a" == catch.body.result.text
