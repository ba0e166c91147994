"""Steps with tools: calls run, results go back, and what goes wrong is told or ends the step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sample_tools

from flowforge.backends.protocol import GenerateRequest
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.grammars.tool_formats import NamedTool, ToolCall
from flowforge.language.loader import load, load_text, require_program
from flowforge.runtime.events import StepFailed, StepFinished, ToolCalled, ToolReturned
from flowforge.runtime.run import RunFailedError, start

if TYPE_CHECKING:
    from flowforge.backends.protocol import JsonValue
    from flowforge.language.program import Program
    from flowforge.runtime.events import Fact

SUPPORT = Path(sample_tools.__file__).parent
HEAD = """\
flowforge: 1
name: t
tools:
  add: { python: 'sample_tools:add', effect: read }
  fail: { python: 'sample_tools:fail', effect: read, max_result: 40 }
  count: { python: 'sample_tools:count', effect: write }
"""


def program(options: str, extra: str = "", head: str = HEAD) -> Program:
    steps = f"steps:\n  a: {{ user: hi, gen: {options} }}\n{extra}outputs: {{ a: '${{ a }}' }}\n"
    text = head + steps
    return require_program(load_text(text, str(SUPPORT / "t.yaml")))


def calls(*named: tuple[str, dict[str, Any]]) -> ScriptedAnswer:
    return ScriptedAnswer(calls=tuple(ToolCall(name, arguments) for name, arguments in named))


async def run(
    program: Program, answers: dict[str, Any]
) -> tuple[JsonValue, list[Fact], ScriptBackend]:
    backend = ScriptBackend(answers)
    async with start(program, {}, backend, seed=1) as running:
        facts = [event.fact async for event in running.events()]
        outputs = await running.result()
    assert backend.num_open == 0
    return outputs["a"], facts, backend


async def test_results_go_back_until_the_model_answers() -> None:
    steps = program("{ tools: [add] }")
    answers: list[str | ScriptedAnswer] = [
        calls(("add", {"left": 1, "right": 2}), ("add", {"left": 5})),
        calls(("add", {"left": 3, "right": 6})),
        "nine",
    ]

    value, facts, backend = await run(steps, {"a": answers})

    assert value == "nine"
    called = [(fact.path, fact.arguments) for fact in facts if isinstance(fact, ToolCalled)]
    assert called == [
        ("a/add[0]", {"left": 1, "right": 2}),
        ("a/add[1]", {"left": 5}),
        ("a/add[2]", {"left": 3, "right": 6}),
    ]
    returned = {fact.path: fact.result for fact in facts if isinstance(fact, ToolReturned)}
    assert returned == {"a/add[0]": 3, "a/add[1]": 6, "a/add[2]": 9}
    assert backend.prompts[-1].text.endswith(
        'tool: 3\ntool: 6\nassistant: add({"left": 3, "right": 6})\ntool: 9'
    )
    finished = {fact.path: fact.value for fact in facts if isinstance(fact, StepFinished)}
    assert finished == {"a/add[0]": 3, "a/add[1]": 6, "a/add[2]": 9, "a": "nine"}


async def test_a_call_that_must_be_made_is_only_asked_for_once() -> None:
    steps = program("{ tools: [add, fail], choice: add, parallel: 3 }")

    _, _, backend = await run(steps, {"a": [calls(("add", {"left": 1})), "two"]})

    offers = [prompt.request.offer for prompt in backend.prompts]  # type: ignore[union-attr]
    assert [offer.choice for offer in offers if offer] == [NamedTool("add"), "auto"]
    assert [offer.max_calls for offer in offers if offer] == [3, 3]
    first = offers[0]
    assert first is not None
    assert (first.tools[0].name, first.tools[0].description) == ("add", "Add.")
    assert first.tools[0].parameters["required"] == ["left"]


async def test_a_failed_call_is_told_to_the_model() -> None:
    steps = program("{ tools: [fail, add] }")
    answers = [calls(("fail", {"reason": "no"}), ("add", {"left": "x"})), "sorry"]

    value, facts, _ = await run(steps, {"a": answers})

    assert value == "sorry"
    returned = [fact for fact in facts if isinstance(fact, ToolReturned)]
    assert all(fact.is_error for fact in returned)
    failed = {fact.path: fact.code for fact in facts if isinstance(fact, StepFailed)}
    assert failed == {"a/fail[0]": "TL201", "a/add[1]": "TL103"}


async def test_a_failed_call_fails_the_step_where_it_says_so() -> None:
    steps = program("{ tools: [fail], on_tool_error: fail }")

    with pytest.raises(RunFailedError, match="raised ValueError"):
        await run(steps, {"a": [calls(("fail", {"reason": "no"})), "never"]})


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        ("json: { type: array, items: { type: integer } }", "[3, 9]", [3, 9]),
        ("regex: 'is [0-9]+', max_tokens: 9", "is 12", "is 12"),
        ("choice: [yes, no]", "yes", "yes"),
        ("grammar: { name: flowforge/arithmetic, tree: false }", "1+2", "1+2"),
    ],
)
async def test_the_answer_behind_the_calls_has_its_form(
    form: str, text: str, value: JsonValue
) -> None:
    steps = program(f"{{ tools: [add], {form} }}")

    found, facts, backend = await run(steps, {"a": [calls(("add", {"left": 1})), text]})

    assert found == value
    assert [fact.result for fact in facts if isinstance(fact, ToolReturned)] == [2]
    asked = [prompt.request for prompt in backend.prompts]
    assert [one.has_form for one in asked if isinstance(one, GenerateRequest)] == [True, True]


async def test_an_answer_behind_calls_that_breaks_its_form_or_is_cut_fails() -> None:
    steps = program("{ tools: [add], json: { type: integer } }")
    called = calls(("add", {"left": 1}))

    with pytest.raises(RunFailedError, match="breaks 'type'"):
        await run(steps, {"a": [called, '"no"']})
    with pytest.raises(RunFailedError, match="cut off"):
        await run(steps, {"a": [called, ScriptedAnswer("12", "length")]})


async def test_an_answer_that_is_asked_for_again_calls_its_tools_again() -> None:
    steps = program("{ tools: [add], json: { not: { const: 3 } }, on_unsupported: relax }")
    called = calls(("add", {"left": 1}))

    value, facts, _ = await run(steps, {"a": [called, "3", called, "4"]})

    assert value == 4
    assert [f.path for f in facts if isinstance(f, ToolCalled)] == ["a/add[0]", "a#2/add[0]"]


async def test_a_huge_result_is_cut_before_the_model_sees_it() -> None:
    steps = program("{ tools: [fail] }")
    answers = [calls(("fail", {"reason": "x" * 100_000})), "ok"]

    _, _, backend = await run(steps, {"a": answers})

    told = backend.prompts[-1].text.partition("tool: ")[2]
    assert len(told) < 150
    assert "more characters were cut off" in told


async def test_after_the_last_round_the_model_must_answer() -> None:
    steps = program("{ tools: [add], rounds: 2 }")
    again = calls(("add", {"left": 1}))

    value, _, backend = await run(steps, {"a": [again, again, "done"]})

    assert value == "done"
    offers = [prompt.request.offer for prompt in backend.prompts]  # type: ignore[union-attr]
    assert [offer.choice for offer in offers if offer] == ["auto", "auto", "none"]


async def test_one_round_too_many_fails_where_it_says_so() -> None:
    steps = program("{ tools: [add], rounds: 1, on_rounds: fail }")
    again = calls(("add", {"left": 1}))

    with pytest.raises(RunFailedError, match="called tools in 1 turns"):
        await run(steps, {"a": [again, again]})


async def test_a_call_that_was_cut_off_fails_the_step() -> None:
    steps = program("{ tools: [add], max_tokens: 5 }")
    cut = ScriptedAnswer(finish_reason="length", calls=(ToolCall("add", {"left": 1}),))

    with pytest.raises(RunFailedError, match="within a call"):
        await run(steps, {"a": cut})


async def test_calls_that_change_something_run_one_after_another() -> None:
    tally = sample_tools.fresh()
    steps = program("{ tools: [count] }")

    _, facts, _ = await run(steps, {"a": [calls(*[("count", {"delay_s": 0.001})] * 3), "ok"]})

    assert tally.peak == 1
    seen = [type(fact).__name__ for fact in facts if isinstance(fact, ToolCalled | ToolReturned)]
    assert seen == ["ToolCalled", "ToolReturned"] * 3


async def test_calls_of_one_turn_run_side_by_side_as_far_as_their_tool_allows() -> None:
    tally = sample_tools.fresh()
    limited = "{ python: 'sample_tools:count', effect: read, concurrency: 2 }"
    steps = program("{ tools: [limited] }", head=HEAD + f"  limited: {limited}\n")

    await run(steps, {"a": [calls(*[("limited", {"delay_s": 0.001})] * 5), "ok"]})

    assert tally.peak == 2


async def test_a_step_can_go_on_from_one_with_tools() -> None:
    steps = program("{ tools: [add] }", "  b: { from: a, user: more, gen: }\n")

    _, _, backend = await run(steps, {"a": [calls(("add", {"left": 1})), "two"], "b": "three"})

    assert "tool: 2\nassistant: two\nuser: more" in backend.prompts[-1].text


async def test_a_failed_try_begins_its_rounds_anew() -> None:
    head = HEAD + "defaults: { retry: { attempts: 2, backoff: 1ms } }\n"
    steps = program("{ tools: [fail, add], on_tool_error: fail }", head=head)
    answers = [calls(("fail", {"reason": "no"})), calls(("add", {"left": 1})), "two"]

    value, facts, _ = await run(steps, {"a": answers})

    assert value == "two"
    called = [fact.path for fact in facts if isinstance(fact, ToolCalled)]
    assert called == ["a/fail[0]", "a#2/add[0]"]


async def test_a_workflow_is_a_tool(tmp_path: Path) -> None:
    (tmp_path / "sub.yaml").write_text(
        "flowforge: 1\nname: shout\ninputs: { word: string }\n"
        "steps: { up: { set: '${ inputs.word | upper }' } }\noutputs: { loud: '${ up }' }\n"
    )
    main = (
        "flowforge: 1\nname: main\ntools: { shout: { workflow: sub.yaml, description: Shouts. } }\n"
        "steps: { a: { user: hi, gen: { tools: [shout] } } }\noutputs: { a: '${ a }' }\n"
    )
    (tmp_path / "main.yaml").write_text(main)
    steps = require_program(load(tmp_path / "main.yaml"))
    answers = [calls(("shout", {"word": "hey"}), ("shout", {"word": 3})), "ok"]

    _, facts, backend = await run(steps, {"a": answers})

    assert 'tool: {"loud": "HEY"}' in backend.prompts[-1].text
    assert 'tool: {"error": ' in backend.prompts[-1].text
    assert "a/shout[0]/up" in [f.path for f in facts if isinstance(f, StepFinished)]


async def test_a_cancel_reaches_running_calls() -> None:
    tally = sample_tools.fresh()
    head = HEAD + "  wait: { python: 'sample_tools:count', effect: read }\n"
    steps = program("{ tools: [wait] }", head=head)
    backend = ScriptBackend(
        {"a": [calls(("wait", {"delay_s": 60.0}), ("wait", {"delay_s": 60.0})), "never"]}
    )

    facts: list[Fact] = []
    async with start(steps, {}, backend, seed=1) as running:
        async for event in running.events():
            facts.append(event.fact)
            if isinstance(event.fact, ToolCalled) and event.fact.path == "a/wait[1]":
                running.cancel()

    assert tally.num_running == 0
    assert type(facts[-1]).__name__ == "RunCancelled"
    assert backend.num_open == 0
