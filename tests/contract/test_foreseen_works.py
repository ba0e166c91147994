"""The first generations of branches run while the list that they are for is still being written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from await_points import cancelling_at
from history_backend import open_history_backend

import flowforge as ff
from flowforge.backends.passing import PassingBackend, PassingConversation
from flowforge.backends.protocol import GenerationDone, TextDelta
from flowforge.runtime.events import RunCancelled, RunFinished, StepStarted, StepText
from flowforge.runtime.policy import RunPolicy
from flowforge.runtime.run import RunFailedError, start
from flowforge.testing import VirtualClock, in_turn, script

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from flowforge.backends.protocol import Backend, Conversation, GenerateRequest
    from flowforge.language.program import Program
    from flowforge.runtime.events import Event

LIST = """
flowforge: 1
name: list
steps:
  names:
    user: name some
    retry: { attempts: 2, backoff: 1ms }
    gen: { json: { type: array, items: { type: string }, maxItems: 3 } }
  each:
    for: name in names
    do:
      word: { system: be brief, user: "about ${ name }", gen: {} }
outputs: { each: "${ each }" }
"""
WORDS = {"each[0]/word": "first", "each[1]/word": "second", "each[2]/word": "third"}


class Watched(PassingBackend):
    """Holds the end of a list back until so many generations of branches have begun.

    began: labels of generations, in the order in which they began.
    """

    def __init__(self, inner: Backend, num_before: int) -> None:
        super().__init__(inner)
        self.began: list[str] = []
        self.enough = anyio.Event()
        self._num_before = num_before

    def begin(self, label: str) -> None:
        self.began.append(label)
        if sum("/word" in one for one in self.began) == self._num_before:
            self.enough.set()

    def around(self, inner: Conversation) -> Conversation:
        return WatchedConversation(inner, self)


class WatchedConversation(PassingConversation):
    def __init__(self, inner: Conversation, backend: Watched) -> None:
        super().__init__(inner)
        self._backend = backend

    def around(self, inner: Conversation) -> Conversation:
        return WatchedConversation(inner, self._backend)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        self._backend.begin(request.label)
        items = self.inner.generate(request)
        try:
            async for item in items:
                if isinstance(item, GenerationDone) and request.label == "names":
                    await self._backend.enough.wait()
                yield item
        except ff.FlowForgeError:
            await self._backend.enough.wait()
            raise
        finally:
            await items.aclose()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    path = tmp_path / "list.yaml"
    path.write_text(LIST, encoding="utf-8")
    return ff.load(path)


async def events_of(
    program: Program, backend: Backend, policy: RunPolicy | None = None
) -> list[Event]:
    async with start(
        program, {}, backend, clock=VirtualClock(), seed=1, policy=policy or RunPolicy()
    ) as run:
        return [event async for event in run.events()]


def outputs_of(events: list[Event]) -> object:
    end = events[-1].fact
    assert isinstance(end, RunFinished), end
    return end.outputs["each"]


async def test_branches_write_before_their_list_ends_and_are_told_when_it_has(
    program: Program,
) -> None:
    scripted = script({"names": '["a", "b", "c"]', **WORDS})
    backend = Watched(scripted, num_before=3)

    events = await events_of(program, backend)

    assert ["first", "second", "third"] == outputs_of(events)
    facts = [event.fact for event in events]
    paths = [fact.path for fact in facts if isinstance(fact, StepStarted)]
    assert ["names", "each", *WORDS] == paths
    texts = {fact.path: fact.text for fact in facts if isinstance(fact, StepText)}
    assert texts["each[2]/word"] == "third"
    assert 0 == scripted.num_open


async def test_without_foresight_no_branch_begins_before_its_list_is_there(
    program: Program,
) -> None:
    scripted = script({"names": '["a", "b", "c"]', **WORDS})
    backend = Watched(scripted, num_before=3)
    backend.enough.set()

    events = await events_of(program, backend, RunPolicy(foresees_branches=False))

    assert ["first", "second", "third"] == outputs_of(events)
    assert "names" == backend.began[0]
    assert {"names", *WORDS} == {*backend.began}


async def test_branches_of_a_list_that_fails_are_given_up_and_not_counted(
    program: Program,
) -> None:
    broken = ff.ScriptedAnswer('["w", "x", "y"]', error=ff.EngineError("EN900", "once"))
    lists = in_turn(broken, '["a"]')
    scripted = script({"names": lists, "each[*]/word": "a word of some length"})
    backend = Watched(scripted, num_before=3)

    events = await events_of(program, backend)

    assert ["a word of some length"] == outputs_of(events)
    assert 0 == scripted.num_open
    asked = [one.text for one in scripted.prompts if one.label == "each[0]/word"]
    assert ["about w" in asked[0], "about a" in asked[-1]] == [True, True]
    told = [one.fact.path for one in events if isinstance(one.fact, StepStarted)]
    assert ["names", "names#2", "each", "each[0]/word"] == told
    end = events[-1].fact
    assert isinstance(end, RunFinished)
    assert end.accounting.generated_tokens == scripted.statistics().generated_tokens
    assert end.accounting.cut_tokens > 0


async def test_a_list_that_is_cut_fails_the_run_and_leaves_nothing_of_its_branches(
    program: Program,
) -> None:
    cut = ff.ScriptedAnswer('["a", "b", "c', finish_reason="length")
    scripted = script({"names": cut, "each[*]/word": "a word"})
    backend = Watched(scripted, num_before=2)

    async with start(program, {}, backend, clock=VirtualClock()) as run:
        with pytest.raises(RunFailedError, match="cut off"):
            await run.result()

    assert 0 == scripted.num_open


async def test_what_a_foreseen_generation_fails_with_fails_the_branch_that_takes_it(
    program: Program,
) -> None:
    broken = ff.ScriptedAnswer("a few", error=ff.EngineError("EN900", "no more tokens"))
    scripted = script({"names": '["a", "b"]', "each[0]/word": broken, "each[1]/word": "b"})
    backend = Watched(scripted, num_before=2)

    async with start(program, {}, backend, clock=VirtualClock()) as run:
        with pytest.raises(RunFailedError, match="no more tokens") as caught:
            await run.result()

    assert "each[0]/word" == caught.value.failures[0].path
    assert 0 == scripted.num_open


NUMBERS = (
    LIST.replace("{ type: string }, maxItems: 3", "{ enum: [1, 2] }, minItems: 3")
    .replace("gen: {}", "gen: { max_tokens: 3 }")
    .replace("type: array,", "type: array, maxItems: 3,")
)


@pytest.mark.timeout(120, func_only=True)
async def test_a_cancel_at_any_point_leaves_no_page_held_and_the_books_right(
    tmp_path: Path,
) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(NUMBERS, encoding="utf-8")
    program, num_told, num_cut, point, is_reached = ff.load(path), 0, 0, 1, True

    async with open_history_backend() as opened:
        while is_reached:
            async with start(program, {}, opened.backend, seed=1) as run:
                with cancelling_at(point, run.cancel) as points:
                    events = [event async for event in run.events()]
            end = events[-1].fact
            assert isinstance(end, RunFinished | RunCancelled), end
            num_told += end.accounting.generated_tokens
            num_cut += end.accounting.cut_tokens
            await opened.check_nothing_held()
            assert opened.backend.statistics().generated_tokens == num_told, f"point {point}"
            is_reached, point = points.is_reached, point + 3

    assert num_cut > 0
    assert point > 50
