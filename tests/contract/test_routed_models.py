"""A route as a backend: its models are asked in turn, and each is told what was said before."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from chat_server import ChatServer, Reply, calls_reply, error_reply, remote_model, text_reply

from flowforge.backends.notices import Compared, Notice, Routed
from flowforge.backends.protocol import (
    GenerateRequest,
    GenerationDone,
    TextDelta,
    ToolOffer,
)
from flowforge.backends.remote.backend import open_remote
from flowforge.backends.routing.route import read_route
from flowforge.backends.routing.router import Router
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.errors import EngineError
from flowforge.grammars.tool_formats import ToolCall, ToolDefinition
from flowforge.task_groups import open_task_group

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from flowforge.backends.protocol import Conversation

DOWN = error_reply(503, "down")
OFFER = ToolOffer((ToolDefinition("look", "Look.", {"type": "object"}),))


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def routed(
    servers: dict[str, ChatServer],
    *,
    script: ScriptBackend | None = None,
    clock: Clock | None = None,
    **table: Any,
) -> AsyncGenerator[Router]:
    """A route to servers, and to a script in the place of the engine."""
    route, problems = read_route("main", table)
    assert route is not None, problems
    async with AsyncExitStack() as stack:
        remotes = {
            f"remote/{name}": await stack.enter_async_context(
                open_remote(remote_model(name, attempts=1), transport=server.transport)
            )
            for name, server in servers.items()
        }

        async def open_on(model: str, system: str | None) -> Conversation:
            backend = script if model == "engine" and script is not None else remotes[model]
            return await backend.open(system=system)

        tasks = await stack.enter_async_context(open_task_group())
        yield Router(route, open_on, tasks, clock or Clock())
        tasks.cancel_scope.cancel()


async def written(
    conversation: Conversation, notices: list[Notice] | None = None, **request: Any
) -> GenerationDone:
    tell = None if notices is None else notices.append
    done: GenerationDone | None = None
    async for item in conversation.generate(GenerateRequest(label="s", tell=tell, **request)):
        if isinstance(item, GenerationDone):
            done = item
    assert done is not None
    return done


async def test_the_next_model_answers_where_the_first_fails() -> None:
    servers = {"a": ChatServer(DOWN), "b": ChatServer(text_reply("from b"))}
    notices: list[Notice] = []

    async with routed(servers, weights={"remote/a": 1}, fallback=["remote/b"]) as router:
        conversation = await router.open("Be brief.")
        conversation.add_user("Hello.")
        done = await written(conversation, notices)
        await conversation.close()

    assert "from b" == done.text
    assert [
        ("remote/a", "weight 100%"),
        ("remote/b", "fallback: remote/a failed [EN403]"),
    ] == [(one.model, one.reason) for one in notices if isinstance(one, Routed)]
    assert servers["a"].bodies[0]["messages"] == servers["b"].bodies[0]["messages"]


async def test_what_the_last_model_raises_is_raised() -> None:
    servers = {"a": ChatServer(DOWN), "b": ChatServer(error_reply(400, "too strange"))}

    async with routed(servers, weights={"remote/a": 1}, fallback=["remote/b"]) as router:
        conversation = await router.open(None)
        conversation.add_user("Hello.")
        with pytest.raises(EngineError, match="too strange"):
            await written(conversation)


async def test_a_text_that_was_begun_is_not_begun_again_by_another() -> None:
    broken = Reply([*text_reply("half").chunks[:2]], breaks_off=True)
    servers = {"a": ChatServer(broken), "b": ChatServer(text_reply("whole"))}

    async with routed(servers, weights={"remote/a": 1}, fallback=["remote/b"]) as router:
        conversation = await router.open(None)
        conversation.add_user("Hello.")
        with pytest.raises(EngineError, match="EN408"):
            await written(conversation)
        assert conversation.take_cut() is not None

    assert [] == servers["b"].bodies


async def test_a_model_that_is_left_alone_is_not_asked_until_its_pause_is_over() -> None:
    clock = Clock()
    servers = {
        "a": ChatServer(DOWN, DOWN, text_reply("back")),
        "b": ChatServer(*[text_reply("b")] * 3),
    }
    notices: list[Notice] = []

    async with routed(
        servers,
        clock=clock,
        weights={"remote/a": 1},
        fallback=["remote/b"],
        failures=2,
        pause="30s",
    ) as router:
        texts: list[str] = []
        for now_s in (0.0, 1.0, 2.0, 31.5):
            clock.now_s = now_s
            conversation = await router.open(None)
            conversation.add_user("Hello.")
            texts.append((await written(conversation, notices)).text)

    assert ["b", "b", "b", "back"] == texts
    assert 3 == len(servers["a"].bodies)
    reasons = [one.reason for one in notices if isinstance(one, Routed)]
    assert "fallback: remote/a is left alone for 29 s more" in reasons


async def test_without_a_model_to_ask_the_route_says_so() -> None:
    clock = Clock()
    server = ChatServer(DOWN)

    async with routed({"a": server}, clock=clock, weights={"remote/a": 1}, failures=1) as router:
        conversation = await router.open(None)
        conversation.add_user("Hello.")
        with pytest.raises(EngineError, match="EN403"):
            await written(conversation)
        with pytest.raises(EngineError, match=r"EN411.*remote/a for 30 s more"):
            await written(conversation)

    assert 1 == len(server.bodies)


async def test_every_model_is_told_what_others_wrote() -> None:
    server = ChatServer(text_reply("from the server"))
    script = ScriptBackend({"s": ["from the engine", "and again"]})
    rules = [{"tag": "far", "to": "remote/a"}]

    async with routed({"a": server}, script=script, weights={"engine": 1}, rules=rules) as router:
        conversation = await router.open("Be brief.")
        conversation.add_user("One?")
        await written(conversation)
        conversation.add_user("Two?")
        await written(conversation, tags=("far",))
        fork = await conversation.fork()
        fork.add_user("Three?")
        await written(fork)
        await conversation.close()
        await fork.close()

    assert [
        ("system", "Be brief."),
        ("user", "One?"),
        ("assistant", "from the engine"),
        ("user", "Two?"),
    ] == [(one["role"], one["content"]) for one in server.bodies[0]["messages"]]
    assert script.prompts[1].text.endswith("user: Two?\nassistant: from the server\nuser: Three?")
    assert 0 == script.num_open


async def test_calls_of_a_server_s_model_are_told_to_the_engine_as_texts() -> None:
    server = ChatServer(calls_reply(("look", "{}")))
    script = ScriptBackend({"s": "seen"})
    rules = [{"tag": "far", "to": "remote/a"}]

    async with routed({"a": server}, script=script, weights={"engine": 1}, rules=rules) as router:
        conversation = await router.open(None)
        conversation.add_user("Look!")
        done = await written(conversation, tags=("far",), offer=OFFER)
        conversation.add_results(["a tree"])
        await written(conversation)

    assert (ToolCall("look", {}, "id_0"),) == done.calls
    assert 'assistant: {"name": "look", "arguments": {}}' in script.prompts[0].text
    assert 'user: {"results": ["a tree"]}' in script.prompts[0].text


async def test_a_shadow_answers_too_and_only_its_likeness_is_told() -> None:
    servers = {"a": ChatServer(text_reply("a b c d")), "b": ChatServer(text_reply("a b c x"))}
    notices: list[Notice] = []

    async with routed(servers, weights={"remote/a": 1}, shadow={"to": "remote/b"}) as router:
        conversation = await router.open(None)
        conversation.add_user("Letters?")
        done = await written(conversation, notices)
        await conversation.close()

    assert "a b c d" == done.text
    told = next(one for one in notices if isinstance(one, Compared))
    assert ("route/main", "remote/b", 0.75) == (told.route, told.model, told.similarity)
    assert told.usage is not None
    assert 7 == told.usage.generated_tokens


async def test_a_shadow_that_fails_hurts_nobody() -> None:
    servers = {"a": ChatServer(text_reply("fine")), "b": ChatServer(DOWN)}
    notices: list[Notice] = []

    async with routed(servers, weights={"remote/a": 1}, shadow={"to": "remote/b"}) as router:
        conversation = await router.open(None)
        conversation.add_user("Hello.")
        done = await written(conversation, notices)
        await conversation.close()

    assert "fine" == done.text
    assert ["EN403"] == [one.code for one in notices if isinstance(one, Compared)]


async def test_a_shadow_goes_when_its_request_is_cancelled() -> None:
    stalls = Reply([*text_reply("wait").chunks[:2]], stalls=True)
    servers = {"a": ChatServer(stalls), "b": ChatServer(stalls)}

    async with routed(servers, weights={"remote/a": 1}, shadow={"to": "remote/b"}) as router:
        conversation = await router.open(None)
        conversation.add_user("Hello.")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(written, conversation)
            await servers["a"].stalled.wait()
            await servers["b"].stalled.wait()
            tasks.cancel_scope.cancel()
        await conversation.close()

    assert [1, 1] == [server.num_closed for server in servers.values()]


async def test_a_prefill_is_told_once() -> None:
    script = ScriptBackend({"s": ScriptedAnswer("yes")})

    async with routed({}, script=script, weights={"engine": 1}) as router:
        conversation = await router.open(None)
        conversation.add_user("Hello.")
        items = conversation.generate(GenerateRequest(prefill="Well, ", label="s"))
        deltas = [item.text async for item in items if isinstance(item, TextDelta)]
        await conversation.close()

    assert ["Well, ", "yes"] == deltas
