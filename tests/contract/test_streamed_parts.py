"""Parts of JSON answers while they are written: in chats, typed, and as events of every run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, TypeAdapter, field_validator

import flowforge as ff
from flowforge.language.loader import load_text, require_program
from flowforge.runtime.events import StepFinished, StepPart, StepText
from flowforge.runtime.run import start
from flowforge.testing import calls, in_turn, script

if TYPE_CHECKING:
    from flowforge.runtime.events import Fact


class Angle(BaseModel):
    name: str
    weight: float = 1.0

    @field_validator("name")
    @classmethod
    def is_no_joke(cls, name: str) -> str:
        if name == "joke":
            raise ValueError("be serious")
        return name


ANGLES = '[{"name": "cost"}, {"name": "law, old", "weight": 2}]'


async def facts_of(flow: ff.Flow[[], Any], answer: str) -> tuple[list[Fact], Any]:
    backend = script({"angles": answer})
    async with ff.start(flow, backend=backend, seed=1) as handle:
        facts = [event.fact async for event in handle.events()]
        result = await handle.result()
    assert backend.num_open == 0
    return facts, result


@ff.flow
async def typed(run: ff.Run) -> list[str]:
    async with run.chat() as chat:
        chat.user("Name angles.")
        async with chat.stream(list[Angle], name="angles") as stream:
            seen = [f"{angle.name} {angle.weight}" async for angle in stream.elements()]
        assert [angle.name for angle in stream.result] == ["cost", "law, old"]
    return seen


@ff.flow
async def fields(run: ff.Run) -> list[Any]:
    async with run.chat() as chat:
        chat.user("Name an angle.")
        async with chat.stream(Angle, name="angles") as stream:
            seen: list[Any] = [(part.key, part.value) async for part in stream.parts()]
        return [*seen, stream.result.name]


@ff.flow
async def untyped(run: ff.Run) -> None:
    async with run.chat() as chat:
        chat.user("Name angles.")
        kind: TypeAdapter[list[int]] = TypeAdapter(list[int])
        async with chat.stream(kind, name="angles") as stream:
            async for _ in stream.elements():
                pass


@ff.flow
async def impatient(run: ff.Run) -> str:
    async with run.chat() as chat:
        chat.user("Name angles.")
        async with chat.stream(list[Angle], name="angles") as stream:
            async for angle in stream.elements():
                return angle.name
    return ""


async def test_the_items_of_a_list_come_typed_as_they_close() -> None:
    facts, result = await facts_of(typed, ANGLES)

    assert result == ["cost 1.0", "law, old 2.0"]
    told = [fact for fact in facts if isinstance(fact, StepPart | StepText)]
    first = next(idx for idx, fact in enumerate(told) if isinstance(fact, StepPart))
    before = "".join(fact.text for fact in told[:first] if isinstance(fact, StepText))
    assert ANGLES.startswith(before.rstrip())
    assert "law" not in before
    assert [fact for fact in told if isinstance(fact, StepPart)] == [
        StepPart("angles", 0, {"name": "cost"}),
        StepPart("angles", 1, {"name": "law, old", "weight": 2}),
    ]


async def test_the_fields_of_an_object_come_as_they_close() -> None:
    _, result = await facts_of(fields, '{"name": "cost", "weight": 3}')

    assert result == [("name", "cost"), ("weight", 3), "cost"]


async def test_a_stream_that_is_left_at_an_item_cancels_the_step() -> None:
    facts, result = await facts_of(impatient, ANGLES)

    assert result == "cost"
    assert not [fact for fact in facts if isinstance(fact, StepFinished)]


@pytest.mark.parametrize(
    ("flow", "answer", "code"),
    [
        (typed, '[{"name": "joke"}]', "WF603"),
        (untyped, "[1]", "WF608"),
    ],
)
async def test_an_item_that_its_type_refuses_is_said(
    flow: ff.Flow[[], Any], answer: str, code: str
) -> None:
    with pytest.raises(ff.RunFailedError) as caught:
        await facts_of(flow, answer)

    assert caught.value.failures[0].error.code == code


async def test_the_parts_of_a_steps_json_are_told_while_it_is_written() -> None:
    text = (
        "flowforge: 1\nname: t\ntools: { now: { python: 'platform:machine', effect: read } }\n"
        "steps:\n"
        "  list: { user: hi, gen: { tools: [now], json: { type: array, items: {} } } }\n"
        "  object: { user: hi, gen: { json: { type: object } } }\n"
        "  text: { user: hi, gen: }\n"
    )
    program = require_program(load_text(text))
    answers = {
        "list": in_turn(calls(("now", {})), "[1, [2]]"),
        "object": '{"a": [1]}',
        "text": "[1]",
    }
    backend = script(answers)

    async with start(program, {}, backend, seed=1) as running:
        facts = [event.fact async for event in running.events()]

    parts = {(fact.path, fact.key, str(fact.value)) for fact in facts if isinstance(fact, StepPart)}
    assert parts == {("list", 0, "1"), ("list", 1, "[2]"), ("object", "a", "[1]")}


async def test_a_slow_reader_gets_parts_behind_their_text() -> None:
    backend = script({"angles": ANGLES})
    async with ff.start(typed, backend=backend, seed=1) as handle:
        await handle.result()
        facts = [event.fact async for event in handle.events(max_waiting=1)]

    texts = [fact for fact in facts if isinstance(fact, StepText)]
    assert ["".join(fact.text for fact in texts)] == [ANGLES]
    assert [fact.key for fact in facts if isinstance(fact, StepPart)] == [0, 1]
    assert facts.index(texts[0]) < facts.index(StepPart("angles", 0, {"name": "cost"}))
