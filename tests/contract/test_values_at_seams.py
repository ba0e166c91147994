"""What enters a run from tools, people and models is JSON and Unicode, or its step fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import flowforge as ff
from flowforge.cli.failures import print_json_line
from flowforge.runtime.event_json import event_as_json
from flowforge.runtime.events import RunFailed, RunFinished, StepFinished
from flowforge.testing import people, script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HALF = "half \ud800"
NO_VALUES = [float("nan"), float("inf"), HALF, {HALF: 1}, {1: 2}, [[-float("inf")]], object()]


@ff.tool(effect="read")
def odd(which: int) -> object:
    return NO_VALUES[which]


@ff.tool(effect="read")
def echo(value: object) -> object:
    return value


@pytest.mark.parametrize("which", range(len(NO_VALUES)))
async def test_a_tool_that_returns_no_json_fails_its_step(which: int) -> None:
    @ff.flow
    async def flow(run: ff.Run) -> object:
        return await run.call(odd, which)

    if which == 4:
        # Python's own writer of JSON makes a text of such a key, and so does ours.
        assert {"1": 2} == await ff.run(flow, backend=script({}))
        return
    with pytest.raises(ff.RunFailedError, match="TL104") as caught:
        await ff.run(flow, backend=script({}))

    assert ["odd"] == [failure.path for failure in caught.value.failures]


@pytest.mark.parametrize("value", [NO_VALUES[0], NO_VALUES[2], NO_VALUES[3], NO_VALUES[6]])
async def test_an_argument_that_is_no_json_is_told_before_the_tool_runs(value: object) -> None:
    @ff.flow
    async def flow(run: ff.Run) -> object:
        return await run.call(echo, value)

    with pytest.raises(ff.RunFailedError, match="argument 'value' of tool 'echo' is no JSON"):
        await ff.run(flow, backend=script({}))


@pytest.mark.parametrize("value", [NO_VALUES[0], NO_VALUES[2], NO_VALUES[6]])
async def test_a_value_that_no_prompt_can_say_is_told_by_its_hole(value: object) -> None:
    @ff.flow
    async def flow(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Say {it}.", it=value)
            return await chat.gen()

    with pytest.raises(ff.RunFailedError, match=r"the value of \{it\} cannot be written"):
        await ff.run(flow, backend=script({"gen": "x"}))


@pytest.mark.parametrize("value", [NO_VALUES[0], NO_VALUES[2]])
async def test_an_input_that_is_no_json_is_refused(value: object) -> None:
    @ff.flow
    async def flow(run: ff.Run, it: object) -> object:
        return it

    with pytest.raises(ff.WorkflowError, match="WF303"):
        await ff.run(flow, backend=script({}), it=value)


ASKING = """
flowforge: 1
name: asking
steps: { sure: { ask: "Sure?" } }
outputs: { end: "${ sure }" }
"""


@pytest.fixture(params=["file", "flow"])
def asking(request: pytest.FixtureRequest, tmp_path: Path) -> str | ff.Flow[[], str]:
    @ff.flow
    async def flow(run: ff.Run) -> str:
        return await run.ask("Sure?", name="sure")

    if request.param == "flow":
        return flow
    path = tmp_path / "asking.yaml"
    path.write_text(ASKING, encoding="utf-8")
    return str(path)


async def test_an_answer_of_a_person_that_is_no_text_fails_its_step(
    asking: str | ff.Flow[[], str],
) -> None:
    asker = people({"sure": HALF})

    async with ff.start(asking, backend=script({}), asker=asker) as handle:
        facts = [event.fact async for event in handle.events()]

    assert isinstance(facts[-1], RunFailed)
    (failed,) = facts[-1].failures
    assert ("sure", "WF532") == (failed.path, failed.code)
    assert "U+D800 at position 5" in failed.message


async def test_json_of_a_model_that_spells_half_a_character_fails_its_step() -> None:
    @ff.flow
    async def flow(run: ff.Run) -> list[str]:
        async with run.chat() as chat:
            return await chat.gen(list[str], name="names")

    with pytest.raises(ff.RunFailedError, match="U\\+D800 is no character") as caught:
        await ff.run(flow, backend=script({"names": ff.ScriptedAnswer('["\\ud800"]')}))

    assert ["names"] == [failure.path for failure in caught.value.failures]


async def test_every_event_of_a_flow_is_json_whatever_its_steps_return(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def strange(run: ff.Run, item: object) -> object:
        del run
        return item

    itself: list[object] = []
    itself.append(itself)
    shown = [*(value for value in NO_VALUES if value != {HALF: 1})]

    @ff.flow
    async def flow(run: ff.Run) -> list[object]:
        await run.map(strange, [{HALF: 1}], name="key")
        await run.map(strange, [itself], name="itself")
        return [*await run.map(strange, shown), await run.call(echo, 1)]

    async with ff.start(flow, backend=script({})) as handle:
        events = [event async for event in handle.events()]
        assert [*shown, 1] == await handle.result()

    for event in events:
        print_json_line(event_as_json(event))
    last = json.loads(capsys.readouterr().out.splitlines()[-1], parse_constant=pytest.fail)
    assert isinstance(events[-1].fact, RunFinished)
    assert ["nan", "inf", "half �", {"1": 2}, [["-inf"]], "<object>", 1] == last["outputs"][
        "result"
    ]
    ends = {e.fact.path: e.fact.value for e in events if isinstance(e.fact, StepFinished)}
    assert ("<list>", "<list>") == (ends["key"], ends["itself"])


def test_events_are_never_written_with_numbers_that_json_lacks() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json_line({"score": float("nan")})


# -- where in the author's file -------------------------------------------------------------------


async def fails_in_a_branch(chat: ff.Chat, angle: str) -> str:
    chat.user("{angle}", angle=angle)
    return await chat.gen(name="draft")  # this line


def line_of(function: Callable[..., object]) -> int:
    return function.__code__.co_firstlineno + 2


async def test_what_fails_in_a_flow_says_the_line_of_the_authors_code() -> None:
    @ff.flow
    async def flow(run: ff.Run) -> list[str]:
        async with run.chat() as chat:
            return await chat.map(fails_in_a_branch, ["a"], name="each")

    broken = ff.ScriptedAnswer(error=ff.EngineError("EN900", "out of order"))
    with pytest.raises(ff.RunFailedError) as caught:
        await ff.run(flow, backend=script({"*": broken}))

    (failure,) = caught.value.failures
    assert "each[0]/draft" == failure.path
    assert failure.error.location == ff.Location(__file__, line_of(fails_in_a_branch), 1)
