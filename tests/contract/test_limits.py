"""Orders that hold a run back: paused, limited to some texts at a time, to tokens and to time."""

from __future__ import annotations

import json
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from programs import block, for_each, gen, program

from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.control.desk import Control
from flowforge.control.limits import Allowance, Limits, UnusableLimitError
from flowforge.runtime.events import RunCancelled, StepFinished, StepText
from flowforge.runtime.run import start

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from flowforge.runtime.run import Run

PARALLEL = program(for_each("each", ["a", "b", "c", "d"], block(gen("one")), limit=4))


async def told(path: Path, **order: object) -> dict[str, Any]:
    """Send an order, as another process would."""
    async with await anyio.connect_unix(path) as stream:
        await stream.send(json.dumps(order).encode() + b"\n")
        reply: dict[str, Any] = json.loads(await stream.receive())
    return reply


async def settle() -> None:
    """Let every task come to where it waits."""
    for _ in range(100):
        await checkpoint()


class Desk:
    """A run under control whose branches each wait for a gate of their own. path: for orders."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gates = [anyio.Event() for _ in range(4)]
        answers = {
            f"each[{idx}]/one": ScriptedAnswer("two words", gate=gate)
            for idx, gate in enumerate(self.gates)
        }
        self.backend = ScriptBackend(answers)
        self.run: Run | None = None
        self.control = Control(self.cancel)

    def cancel(self) -> None:
        assert self.run is not None
        self.run.cancel()

    @asynccontextmanager
    async def running(self, **limits: object) -> AsyncGenerator[Run]:
        """The run, begun under these limits."""
        async with self.control.served(self.path):
            await told(self.path, order="limits", **limits)
            async with start(PARALLEL, {}, self.control.around(self.backend)) as self.run:
                yield self.run

    def let_first_write(self) -> None:
        """Open the gate of the branch that came first; which one that is, is the loop's choice."""
        self.gates[int(self.asked[0].removeprefix("each[")[0])].set()

    @property
    def asked(self) -> list[str]:
        """The prompts that reached the model, in order."""
        return [prompt.label for prompt in self.backend.prompts]


async def test_a_limit_of_texts_at_a_time_holds_and_can_be_raised(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "s")
    async with desk.running(concurrency=2) as run:
        reply = await told(desk.path, order="limits")
        await settle()
        assert {"concurrency": 2, "max_tokens": None, "max_time_s": None} == reply["limits"]
        assert 2 == len(desk.asked)

        desk.let_first_write()
        await settle()
        assert 3 == len(desk.asked), "one left, one came in"

        await told(desk.path, order="limits", concurrency=None)
        await settle()
        assert 4 == len(desk.asked)
        assert 3 == (await told(desk.path, order="status"))["used"]["concurrency"]
        for gate in desk.gates:
            gate.set()
        await run.result()


async def test_a_paused_run_begins_nothing_and_what_is_written_ends(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "s")
    async with desk.running(concurrency=1) as run:
        await settle()
        await told(desk.path, order="pause")
        desk.let_first_write()
        events = run.events().__aiter__()
        while not isinstance((await anext(events)).fact, StepFinished):
            pass
        await settle()
        assert 1 == len(desk.asked), "the others wait"
        assert (await told(desk.path, order="status"))["is_paused"]

        for gate in desk.gates:
            gate.set()
        await told(desk.path, order="go on")
        await run.result()
        await events.aclose()


async def test_a_run_at_its_limit_of_tokens_is_cancelled_with_the_reason(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "s")
    async with desk.running(max_tokens=3, concurrency=1) as run:
        for gate in desk.gates:
            gate.set()
        facts = [event.fact async for event in run.events()]

    assert isinstance(facts[-1], RunCancelled)
    assert 3 <= sum(fact.num_tokens for fact in facts if isinstance(fact, StepText)) <= 4
    assert "it wrote 3 of at most 3 tokens" == desk.control.exceeded
    assert 0 == desk.backend.num_open


async def test_a_run_at_its_limit_of_time_is_cancelled_also_while_it_waits(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "s")
    async with desk.running() as run:
        await told(desk.path, order="pause")
        await told(desk.path, order="limits", max_time_s=0.001)
        facts = [event.fact async for event in run.events()]

    assert isinstance(facts[-1], RunCancelled)
    assert "it took its 0.001 s" == desk.control.exceeded


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number from 1 or null, got 0"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number from 1 or null, got 1.5"),
        ({"max_tokens": True}, "max_tokens must be a whole number from 1 or null, got True"),
        ({"max_time_s": "1h"}, "max_time_s must be a number of seconds above 0 or null, got '1h'"),
        ({"max_time_s": math.inf}, "max_time_s must be a number of seconds above 0 or null"),
    ],
)
def test_a_limit_that_is_none_is_refused_and_changes_nothing(
    order: dict[str, object], reason: str
) -> None:
    allowance = Allowance(pytest.fail, lambda: 0.0)

    with pytest.raises(UnusableLimitError) as refused:
        allowance.change({"max_tokens": 7, **order})

    assert str(refused.value).startswith(reason)
    assert Limits() == allowance.limits


def test_a_limit_below_what_was_used_ends_the_run_at_once_and_only_once() -> None:
    reasons: list[str] = []
    allowance = Allowance(reasons.append, lambda: 0.0)

    allowance.spend(10)
    allowance.change({"max_tokens": 5})
    allowance.spend(1)

    assert ["it wrote 10 of at most 5 tokens"] == reasons
