"""Runs cancelled at every await point there is, by their handle and by their host.

What must hold wherever it was: no page or conversation is held, no task of the run is alive, the
stream ends with one terminal event, and every step that started has exactly one end.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.lowlevel
import pytest
from await_points import cancelling_at
from history_backend import open_history_backend
from pydantic import Field, TypeAdapter

import flowforge as ff
from flowforge.runtime.events import (
    Event,
    RunCancelled,
    RunFinished,
    StepCancelled,
    StepFailed,
    StepFinished,
    StepRetried,
    StepStarted,
)
from flowforge.runtime.stream import is_terminal
from flowforge.testing import in_turn, people, script

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from flowforge.backends.protocol import Backend
    from flowforge.backends.script import ScriptBackend
    from flowforge.language.program import Program
    from flowforge.runtime.stream import EventReader

    Workflow = Program | ff.Flow[[], str]
    CheckNothingHeld = Callable[[], Awaitable[None]]
    Opened = AbstractAsyncContextManager[tuple[Callable[[], Backend], CheckNothingHeld]]

EVERYTHING = """
flowforge: 1
name: everything
tools:
  greet: { python: "sample_tools:greet", effect: read }
  add: { python: "sample_tools:add", effect: read }
steps:
  names: { system: be brief, user: name two, gen: { max_tokens: 3 } }
  each:
    for: name in ["a", "b", "c"]
    limit: 2
    do:
      draft: { from: names, user: "draft ${ name }", gen: { max_tokens: 2 } }
  raced:
    join: first
    parallel:
      one: { from: names, user: one, gen: { max_tokens: 1 } }
      two: { from: names, user: two, gen: { max_tokens: 6 } }
  best:
    from: names
    user: pick
    gen: { max_tokens: 2, n: 3, pick: { best: "${ value | len }" } }
  again:
    loop: { text: "" }
    max: 2
    do:
      more: { from: names, user: "more ${ text }", gen: { max_tokens: 1 } }
    next: { text: "${ more }" }
  greeting: { call: greet, with: { name: ann } }
  sum: { call: add, with: { left: 1 } }
  asked: { ask: "go?", choices: ["yes"], timeout: 1h, on_timeout: "yes" }
  caught:
    call: greet
    with: { name: bob, manner: "${ names }" }
    timeout: 1h
    retry: { attempts: 2, backoff: 1ms }
    catch: { else: "none" }
    finally:
      tidy: { from: names, user: tidy, gen: { max_tokens: 1 } }
outputs: { end: "${ asked }" }
"""
ANSWERS = {"*": "one two"}
DIGIT: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=0, le=9)])
yes = people({"*": "yes"})


async def draft(chat: ff.Chat, name: str) -> str:
    chat.user("draft {name}", name=name)
    return await chat.gen(name="draft", max_tokens=2)


@ff.tool(effect="read")
async def count(text: str) -> int:
    await anyio.lowlevel.checkpoint()
    return len(text)


@ff.flow
async def everything(run: ff.Run) -> str:
    async with run.chat(system="be brief") as chat:
        chat.user("name two")
        names = await chat.gen(name="names", max_tokens=3)
        await chat.map(draft, ["a", "b", "c"], limit=2)
        async with chat.fork(2, join="first") as fork:
            fork.start(draft, ["one", "two"])
        async with chat.fork(2, join="settle") as (left, right):
            left.start(draft, "one")
            right.start(draft, "two")
        await chat.vote(DIGIT, 3, name="vote")
        await chat.choose(["one", "two"], name="kind")
        await chat.score(["one", "two", "one more"], name="weighed")
        async with chat.stream(name="text", max_tokens=3) as stream:
            async for _ in stream:
                pass
        async with chat.stream(name="left", max_tokens=6) as stream:
            async for _ in stream:
                break
        await run.call(count, names)
        await chat.gen(name="tried", retry=ff.Retry(2, backoff="1ms"), max_tokens=1)
        return await run.ask("go?", choices=["yes"], timeout="1h")


@asynccontextmanager
async def scripted() -> AsyncGenerator[tuple[Callable[[], Backend], CheckNothingHeld]]:
    opened: list[ScriptBackend] = []
    broken = ff.ScriptedAnswer(error=ff.EngineError("EN900", "once"))

    def new() -> Backend:
        answers = {**ANSWERS, "weighed": "one", "tried": in_turn(broken, "ok")}
        answers |= {"vote": "4", "kind": "two"}
        opened.append(script(answers))
        return opened[-1]

    async def check() -> None:
        assert 0 == opened[-1].num_open

    yield new, check


@asynccontextmanager
async def on_the_engine() -> AsyncGenerator[tuple[Callable[[], Backend], CheckNothingHeld]]:
    async with open_history_backend() as opened:
        yield lambda: opened.backend, opened.check_nothing_held


class Spent:
    """Holds what runs on one engine say they generated to what the engine generated."""

    def __init__(self) -> None:
        self.num_told = 0
        self.num_cut = 0

    def check(self, events: list[Event], backend: Backend) -> None:
        """After a run: everything is told, what was cut included."""
        end = events[-1].fact
        assert isinstance(end, RunFinished | RunCancelled)
        self.num_told += end.accounting.generated_tokens
        self.num_cut += end.accounting.cut_tokens
        assert backend.statistics().generated_tokens == self.num_told


@pytest.fixture(params=["file", "flow"])
def workflow(request: pytest.FixtureRequest, tmp_path: Path) -> Workflow:
    if request.param == "flow":
        return everything
    path = tmp_path / "everything.yaml"
    path.write_text(EVERYTHING, encoding="utf-8")
    return ff.load(path)


def check_told(events: list[Event]) -> None:
    facts = [event.fact for event in events]
    assert [facts[-1]] == [fact for fact in facts if is_terminal(fact)]
    assert isinstance(facts[-1], RunFinished | RunCancelled)
    started = [fact.path for fact in facts if isinstance(fact, StepStarted)]
    ends = [
        fact.path
        for fact in facts
        if isinstance(fact, StepFinished | StepFailed | StepCancelled | StepRetried)
    ]
    waiting = {fact.next_path for fact in facts if isinstance(fact, StepRetried)} - {*started}
    assert sorted(started) == sorted(path for path in ends if path not in waiting)


async def every_point(
    opening: Opened,
    run_at: Callable[[int, Backend], Awaitable[bool]],
    *,
    first: int = 1,
    stride: int = 1,
) -> int:
    """Run with a cancel at every point until there are no more; the number of points."""
    async with opening as (new_backend, check_nothing_held):
        point = first
        before = {task.id for task in anyio.get_running_tasks()}
        while True:
            is_reached = await run_at(point, new_backend())
            await check_nothing_held()
            assert before == {task.id for task in anyio.get_running_tasks()}, f"point {point}"
            if not is_reached:
                return point
            point += stride


def cancelled_by_handle(
    workflow: Workflow, spent: Spent | None = None
) -> Callable[[int, Backend], Awaitable[bool]]:
    async def run_at(point: int, backend: Backend) -> bool:
        async with ff.start(workflow, backend=backend, asker=yes, seed=1) as handle:
            with cancelling_at(point, handle.cancel) as points:
                events = [event async for event in handle.events()]
        check_told(events)
        if spent is not None:
            spent.check(events, backend)
        return points.is_reached

    return run_at


def cancelled_by_host(workflow: Workflow) -> Callable[[int, Backend], Awaitable[bool]]:
    async def run_at(point: int, backend: Backend) -> bool:
        readers: list[EventReader] = []
        with anyio.CancelScope() as scope, cancelling_at(point, scope.cancel) as points:
            async with ff.start(workflow, backend=backend, asker=yes, seed=1) as handle:
                readers.append(handle.events())
                await handle.result()
        # A run that was cancelled before it began has no events.
        for reader in readers:
            check_told([event async for event in reader])
        return points.is_reached

    return run_at


@pytest.mark.timeout(120, func_only=True)
async def test_a_cancel_at_any_point_leaves_nothing(workflow: Workflow) -> None:
    num_points = await every_point(scripted(), cancelled_by_handle(workflow))

    assert num_points > 50


@pytest.mark.timeout(120, func_only=True)
async def test_a_cancel_of_the_host_at_any_point_leaves_nothing(workflow: Workflow) -> None:
    num_points = await every_point(scripted(), cancelled_by_host(workflow))

    assert num_points > 50


@pytest.mark.timeout(120, func_only=True)
async def test_a_cancel_at_any_point_leaves_no_page_of_the_engine_held(workflow: Workflow) -> None:
    spent = Spent()
    run_at = cancelled_by_handle(workflow, spent)

    num_points = await every_point(on_the_engine(), run_at, stride=3)

    assert num_points > 50
    assert spent.num_cut > 0


async def test_a_step_may_clean_up_with_its_chat_after_a_cancel() -> None:
    gate = anyio.Event()
    closed: list[str] = []

    @ff.flow
    async def tidy(run: ff.Run) -> str:
        async with run.chat() as chat:
            try:
                return await chat.gen(name="text")
            finally:
                closed.append("tidy")

    backend = script({"text": in_turn(ff.ScriptedAnswer("t", gate=gate))})
    async with ff.start(tidy, backend=backend) as handle:
        await anyio.wait_all_tasks_blocked()
        handle.cancel()
        with pytest.raises(ff.RunCancelledError):
            await handle.result()

    assert ["tidy"] == closed
    assert 0 == backend.num_open
