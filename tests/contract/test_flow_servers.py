"""`chat.gen(tools=[ff.mcp(…)])`: tools of a real server process in a Python flow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import flowforge as ff
from flowforge.runtime.events import ToolReturned
from flowforge.testing import calls, in_turn, script

SERVER = str(Path(__file__).parent.parent / "support" / "mcp_tools.py")
KIT = ff.mcp("kit", command=[sys.executable, SERVER], only=["add", "fail"], effect="read")


@ff.flow
async def agent(run: ff.Run) -> str:
    async with run.chat() as chat:
        chat.user("Add.")
        first = await chat.gen(tools=[KIT], name="answer")
        return first + await chat.gen(tools=[KIT], name="again")


async def test_a_flow_calls_tools_of_a_server() -> None:
    asked = calls(("kit__add", {"left": 2, "right": 3}), ("kit__fail", {"reason": "no"}))
    backend = script({"answer": in_turn(asked, "five"), "again": "!"})

    async with ff.start(agent, backend=backend, seed=1) as handle:
        facts = [event.fact async for event in handle.events()]
        assert await handle.result() == "five!"

    returned = {one.path: one for one in facts if isinstance(one, ToolReturned)}
    assert returned["answer/kit__add[0]"].result == 5
    assert returned["answer/kit__fail[1]"].is_error
    assert backend.num_open == 0


async def test_a_server_that_is_not_there_fails_the_run() -> None:
    gone = ff.mcp("gone", command=["/nowhere/at-all"])

    @ff.flow
    async def broken(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Go.")
            return await chat.gen(tools=[gone])

    with pytest.raises(ff.RunFailedError, match="cannot be reached"):
        await ff.run(broken, backend=script({}), seed=1)


def test_a_server_is_reached_by_a_command_or_a_url() -> None:
    for options in ({}, {"command": ["x"], "url": "http://localhost/mcp"}):
        with pytest.raises(ff.WorkflowError, match="has both or neither"):
            ff.mcp("kit", **options)  # type: ignore[arg-type]
    with pytest.raises(ff.WorkflowError, match="one word without"):
        ff.mcp("a__b", url="http://localhost/mcp")
