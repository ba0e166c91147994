"""A model of an OpenAI-compatible server as a backend."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
from chat_server import (
    JSON,
    USAGE,
    ChatServer,
    Reply,
    calls_reply,
    error_reply,
    remote_model,
    text_reply,
)

from flowforge.backends.notices import Delayed, Notice
from flowforge.backends.protocol import (
    GenerateRequest,
    GenerationDone,
    Sampling,
    ScoreRequest,
    TextDelta,
    ToolOffer,
)
from flowforge.backends.remote.backend import open_remote
from flowforge.backends.remote.server import Waiting
from flowforge.errors import EngineError
from flowforge.grammars.tool_formats import NamedTool, ToolDefinition
from flowforge.language.answer_specs import AnswerOptions, GrammarSpec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from flowforge.backends.protocol import Conversation, JsonValue
    from flowforge.backends.remote.backend import RemoteBackend

WEATHER = ToolDefinition(
    "weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
OFFER = ToolOffer((WEATHER,))
LIST: dict[str, JsonValue] = {"type": "array", "items": {"type": "string"}}


@dataclass(slots=True)
class Waits:
    """Waits that take no time."""

    waited: list[float] = field(default_factory=list[float])

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        await anyio.lowlevel.checkpoint()

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.sleep, draw=lambda: 0.5, now=lambda: 1_000_000_000.0)


@asynccontextmanager
async def opened(
    server: ChatServer, waits: Waits | None = None, **model: Any
) -> AsyncGenerator[RemoteBackend]:
    waiting = (waits or Waits()).waiting
    async with open_remote(
        remote_model(**model), waiting=waiting, transport=server.transport
    ) as backend:
        yield backend


async def written(
    conversation: Conversation, request: GenerateRequest | None = None
) -> tuple[list[TextDelta], GenerationDone]:
    deltas: list[TextDelta] = []
    done: GenerationDone | None = None
    async for item in conversation.generate(request or GenerateRequest()):
        if isinstance(item, TextDelta):
            deltas.append(item)
        else:
            done = item
    assert done is not None
    return deltas, done


async def asked(server: ChatServer, request: GenerateRequest, **model: Any) -> GenerationDone:
    async with opened(server, **model) as backend:
        conversation = await backend.open(system="Be brief.")
        conversation.add_user("Say hello.")
        return (await written(conversation, request))[1]


async def test_a_text_comes_in_pieces_with_the_server_s_own_count() -> None:
    server = ChatServer(text_reply("Hel", "lo."))

    async with opened(server) as backend:
        conversation = await backend.open(system="Be brief.")
        conversation.add_user("Say hello.")
        deltas, done = await written(conversation)
        counted = backend.statistics()

    assert ["Hel", "lo."] == [delta.text for delta in deltas]
    assert ("Hello.", "stop") == (done.text, done.finish_reason)
    assert (20, 4, 16, 7) == (
        done.usage.prompt_tokens,
        done.usage.prefilled_tokens,
        done.usage.reused_tokens,
        done.usage.generated_tokens,
    )
    assert done.prompt_ids is None
    assert done.output_ids is None
    assert (4, 16, 7) == (
        counted.prefilled_tokens,
        counted.reused_tokens,
        counted.generated_tokens,
    )


async def test_sampling_reaches_the_server() -> None:
    server = ChatServer(text_reply("ok"))
    sampling = Sampling(50, 0.5, 0.9, 40, seed=2**40 + 3, stop=("\n",))

    await asked(server, GenerateRequest(sampling), dialect="vllm")

    told = server.bodies[0]
    assert {
        "model": "org/Big",
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": 3,
        "stop": ["\n"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }.items() <= told.items()
    assert [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hello."},
    ] == told["messages"]


async def test_forks_begin_with_the_very_same_messages() -> None:
    server = ChatServer(*(text_reply(name) for name in ("one", "two", "three")))

    async with opened(server) as backend:
        conversation = await backend.open(system="Be brief.")
        conversation.add_user("Name a number.")
        await written(conversation)
        forks = [await conversation.fork() for _ in range(2)]
        for idx, fork in enumerate(forks):
            fork.add_user(f"Another, {idx}.")
            await written(fork)

    first, left, right = (body["messages"] for body in server.bodies)
    shared = [*first, {"role": "assistant", "content": "one"}]
    assert json.dumps(shared) == json.dumps(left[:-1]) == json.dumps(right[:-1])
    assert ["Another, 0.", "Another, 1."] == [left[-1]["content"], right[-1]["content"]]


async def test_a_request_is_tried_again_after_the_time_that_the_server_asks_for() -> None:
    notices: list[Notice] = []
    waits = Waits()
    server = ChatServer(
        error_reply(429, "slow down", retry_after="7"),
        error_reply(503, "loading", retry_after="Sun, 09 Sep 2001 01:46:50 GMT"),
        error_reply(500, "oops"),
        text_reply("at last"),
    )

    async with opened(server, waits) as backend:
        conversation = await backend.open()
        conversation.add_user("Say hello.")
        _, done = await written(conversation, GenerateRequest(tell=notices.append))

    assert "at last" == done.text
    # 0.5 s doubled twice, of which half is drawn.
    assert [7.0, 10.0, 2.0] == waits.waited
    delays = [notice for notice in notices if isinstance(notice, Delayed)]
    assert [("remote/big", "EN403", 7.0, 1), ("remote/big", "EN403", 10.0, 2)] == [
        (one.model, one.code, one.wait_s, one.attempt) for one in delays[:2]
    ]
    assert 3 == len(delays) == len(notices)


async def test_no_wait_is_longer_than_the_model_allows() -> None:
    waits = Waits()
    server = ChatServer(error_reply(429, "slow down", retry_after="86400"), text_reply("ok"))

    async with opened(server, waits, max_wait_s=5.0) as backend:
        conversation = await backend.open()
        conversation.add_user("Say hello.")
        await written(conversation)

    assert [5.0] == waits.waited


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (error_reply(401, "bad key"), "EN402", "bad key"),
        (error_reply(404, "no such model"), "EN404", "no such model"),
        (error_reply(400, "unknown field " + 500 * "x"), "EN405", "xxx…"),
        (error_reply(429, "pay first", code="insufficient_quota"), "EN403", "pay first"),
        (Reply(body="<html>Welcome</html>"), "EN409", "<html>Welcome"),
        (Reply([{"choices": [{"delta": 5}]}]), "EN409", "delta"),
        (text_reply("half", finish="content_filter"), "EN408", "content filter"),
    ],
)
async def test_what_no_other_try_would_change_fails_at_once(
    reply: Reply, code: str, words: str
) -> None:
    server = ChatServer(reply)

    with pytest.raises(EngineError, match=code) as raised:
        await asked(server, GenerateRequest())

    assert words in raised.value.message
    assert "remote/big" in raised.value.message
    assert raised.value.help
    assert len(raised.value.message) < 500
    assert 1 == len(server.bodies)


async def test_tries_come_to_an_end() -> None:
    down = httpx2.ConnectError("connection refused")
    server = ChatServer(*[Reply(error=down)] * 3)

    with pytest.raises(EngineError, match="EN401") as raised:
        await asked(server, GenerateRequest(), attempts=3)

    assert "connection refused, also at try 3" in raised.value.message
    assert "http://models.test/v1" in raised.value.message


async def test_a_server_that_says_nothing_is_told_of_as_slow() -> None:
    server = ChatServer(Reply(error=httpx2.ReadTimeout("")))

    with pytest.raises(EngineError, match="said nothing for 120 s"):
        await asked(server, GenerateRequest(), attempts=1)


async def test_what_was_handed_out_is_not_asked_for_again() -> None:
    chunks = [*text_reply("some ", "text").chunks[:2]]
    server = ChatServer(Reply(chunks, breaks_off=True), text_reply("other"))

    async with opened(server) as backend:
        conversation = await backend.open()
        conversation.add_user("Say hello.")
        with pytest.raises(EngineError, match="EN408"):
            await written(conversation)
        cut = conversation.take_cut()

    assert 1 == len(server.bodies)
    assert cut is not None
    assert 1 == cut.usage.generated_tokens


async def test_a_stream_that_breaks_in_its_middle_is_told_of() -> None:
    chunks = [*text_reply("some").chunks[:2], {"error": {"message": "out of memory"}}]

    with pytest.raises(EngineError, match="out of memory"):
        await asked(ChatServer(Reply(chunks)), GenerateRequest())


async def test_a_cancel_closes_the_connection_and_leaves_the_conversation() -> None:
    stalls = Reply([*text_reply("wait").chunks[:2]], stalls=True)
    server = ChatServer(stalls, text_reply("done"))

    async with opened(server) as backend:
        conversation = await backend.open()
        conversation.add_user("Say hello.")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(written, conversation)
            await server.stalled.wait()
            assert 1 == backend.num_in_flight
            tasks.cancel_scope.cancel()
        assert 1 == server.num_closed
        assert 0 == backend.num_in_flight
        await written(conversation)

    assert server.bodies[0]["messages"] == server.bodies[1]["messages"]


async def test_a_generation_that_nobody_reads_to_its_end_closes_the_connection() -> None:
    server = ChatServer(text_reply("one", "two", "three"))

    async with opened(server) as backend:
        conversation = await backend.open()
        conversation.add_user("Say hello.")
        items = conversation.generate(GenerateRequest())
        await anext(items)
        await items.aclose()

    assert 1 == server.num_closed


async def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG_KEY", "very-secret")
    server = ChatServer(text_reply("ok"))

    async with opened(server, api_key="BIG_KEY") as backend:
        conversation = await backend.open()
        conversation.add_user("Say hello.")
        await written(conversation)
        assert "very-secret" not in repr(backend.server)

    assert "Bearer very-secret" == server.headers[0]["authorization"]
    monkeypatch.delenv("BIG_KEY")
    with pytest.raises(EngineError, match=r"EN410.*'BIG_KEY'"):
        await asked(server, GenerateRequest(), api_key="BIG_KEY")


# -- forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "request_", "fields"),
    [
        (
            "vllm",
            GenerateRequest(choice=("a", "b")),
            {"structured_outputs": {"choice": ["a", "b"]}},
        ),
        ("vllm", GenerateRequest(regex="[ab]"), {"structured_outputs": {"regex": "[ab]"}}),
        ("sglang", GenerateRequest(choice=("a", "b.")), {"regex": r"(a|b\.)"}),
        ("llama.cpp", GenerateRequest(choice=("a", "b")), {"grammar": 'root ::= "a" | "b"'}),
        (
            "llama.cpp",
            GenerateRequest(json_schema=LIST),
            {"response_format": {"type": "json_object", "schema": LIST}},
        ),
    ],
)
async def test_a_form_is_asked_for_in_the_server_s_words(
    dialect: str, request_: GenerateRequest, fields: dict[str, Any]
) -> None:
    server = ChatServer(text_reply('["a"]' if request_.json_schema else "a"))

    await asked(server, request_, dialect=dialect)

    assert fields.items() <= server.bodies[0].items()


async def test_a_form_that_openai_does_not_take_is_wrapped_in_an_object() -> None:
    server = ChatServer(text_reply('{"answer": ', '"b"}'), text_reply('{"answer": ["x"]}'))

    async with opened(server) as backend:
        conversation = await backend.open()
        conversation.add_user("Choose.")
        deltas, chosen = await written(conversation, GenerateRequest(choice=("a", "b")))
        _, listed = await written(conversation, GenerateRequest(json_schema=LIST))

    assert "b" == chosen.text == "".join(delta.text for delta in deltas)
    assert '["x"]' == listed.text
    shape = server.bodies[0]["response_format"]["json_schema"]
    assert shape["strict"] is True
    assert {"answer": {"type": "string", "enum": ["a", "b"]}} == shape["schema"]["properties"]
    assert {"role": "assistant", "content": "b"} == server.bodies[1]["messages"][1]


@pytest.mark.parametrize(("required", "is_strict"), [(["a", "b"], True), (["a"], False)])
async def test_strict_mode_is_asked_for_where_a_schema_allows_it(
    required: list[str], is_strict: bool
) -> None:
    whole: dict[str, Any] = {"type": "object", "required": required}
    whole |= {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    server = ChatServer(text_reply('{"a": "x", "b": 1}'))

    await asked(server, GenerateRequest(json_schema=whole))

    shape = server.bodies[0]["response_format"]["json_schema"]
    assert is_strict is shape["strict"]
    assert is_strict is ("additionalProperties" in shape["schema"])


@pytest.mark.parametrize(
    ("request_", "text", "words"),
    [
        (GenerateRequest(choice=("a", "b")), "c", "none of the choices"),
        (GenerateRequest(regex="[0-9]+"), "12x", "regex does not match"),
        (GenerateRequest(json_schema=LIST), "[1]", "breaks 'type'"),
        (GenerateRequest(json_schema=LIST), "Sure! []", "JSON"),
    ],
)
async def test_an_answer_without_its_form_is_refused_here(
    request_: GenerateRequest, text: str, words: str
) -> None:
    with pytest.raises(EngineError, match="EN406") as raised:
        await asked(ChatServer(text_reply(text)), request_, dialect="vllm")

    assert words in raised.value.message


async def test_a_server_without_means_is_told_of_the_form_in_words() -> None:
    server = ChatServer(text_reply('```json\n["a"]\n```'))

    done = await asked(server, GenerateRequest(json_schema=LIST), dialect="words")

    assert '["a"]' == done.text
    last = server.bodies[0]["messages"][-1]["content"]
    assert last.startswith("Say hello.\n\nAnswer with JSON alone")
    assert "response_format" not in server.bodies[0]


async def test_a_cut_answer_is_not_held_to_its_form() -> None:
    server = ChatServer(text_reply('["a', finish="length"))

    done = await asked(server, GenerateRequest(json_schema=LIST), dialect="vllm")

    assert ("length", '["a') == (done.finish_reason, done.text)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (GenerateRequest(grammar=GrammarSpec('start: "a"', "a.lark")), "a.lark"),
        (GenerateRequest(prefill="Well,"), "prefill"),
        (GenerateRequest(Sampling(top_k=3)), "top_k"),
        (GenerateRequest(options=AnswerOptions(think=50)), "think"),
        (GenerateRequest(with_logprob=True), "likely"),
    ],
)
async def test_what_a_server_cannot_do_is_an_error_and_not_left_out(
    request_: GenerateRequest, words: str
) -> None:
    with pytest.raises(EngineError, match="EN407") as raised:
        await asked(ChatServer(text_reply("a")), request_)

    assert words in raised.value.message


async def test_a_prefill_is_gone_on_from() -> None:
    server = ChatServer(text_reply(" yes."))

    done = await asked(server, GenerateRequest(prefill="Well,"), dialect="vllm")

    assert "Well, yes." == done.text
    assert {"role": "assistant", "content": "Well,"} == server.bodies[0]["messages"][-1]
    assert server.bodies[0]["continue_final_message"] is True


async def test_thoughts_are_no_part_of_the_answer() -> None:
    chunks = [{"choices": [{"delta": {"reasoning_content": "hm"}}]}, *text_reply("four").chunks]
    server = ChatServer(Reply(chunks))

    async with opened(server, dialect="vllm") as backend:
        conversation = await backend.open()
        conversation.add_user("Two and two?")
        request = GenerateRequest(Sampling(max_tokens=5), options=AnswerOptions(think=100))
        deltas, done = await written(conversation, request)

    assert [("hm", True), ("four", False)] == [(one.text, one.is_thought) for one in deltas]
    assert "four" == done.text
    assert 105 == server.bodies[0]["max_tokens"]
    assert {"enable_thinking": True} == server.bodies[0]["chat_template_kwargs"]


async def test_likelihoods_are_those_that_the_server_tells() -> None:
    chunk: JSON = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}
    chunk["choices"][0]["logprobs"] = {"content": [{"logprob": -0.5}, {"logprob": -1.5}]}
    server = ChatServer(Reply([chunk]))

    done = await asked(server, GenerateRequest(with_logprob=True))

    assert -1.0 == done.mean_logprob
    assert server.bodies[0]["logprobs"] is True


async def test_texts_cannot_be_weighed() -> None:
    async with opened(ChatServer()) as backend:
        conversation = await backend.open()
        with pytest.raises(EngineError, match="EN407"):
            await conversation.score(ScoreRequest(("a", "b")))


# -- tools ----------------------------------------------------------------------------------------


async def test_a_tool_is_called_and_its_result_told() -> None:
    server = ChatServer(
        calls_reply(("weather", '{"city": "Oslo"}'), ("weather", '{"city": "Rome"}')),
        text_reply("Rain and sun."),
    )

    async with opened(server) as backend:
        conversation = await backend.open()
        conversation.add_user("How is it in Oslo and Rome?")
        _, called = await written(conversation, GenerateRequest(offer=OFFER))
        conversation.add_results(["rain", {"sky": "sun"}])
        _, done = await written(conversation)

    assert [{"city": "Oslo"}, {"city": "Rome"}] == [dict(one.arguments) for one in called.calls]
    assert "Rain and sun." == done.text
    first, second = server.bodies
    assert "auto" == first["tool_choice"]
    assert "weather" == first["tools"][0]["function"]["name"]
    # Not offered again, and still in the prompt.
    assert first["tools"] == second["tools"]
    assert "none" == second["tool_choice"]
    told = second["messages"][-3:]
    assert ["id_0", "id_1"] == [call["id"] for call in told[0]["tool_calls"]]
    assert [("id_0", "rain"), ("id_1", '{"sky": "sun"}')] == [
        (one["tool_call_id"], one["content"]) for one in told[1:]
    ]


async def test_a_server_may_say_a_tool_s_name_with_every_piece() -> None:
    """As llama-cpp-python's does."""
    pieces = ('{"city"', ': "Oslo"}')
    chunks = [
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "x", "function": function}]}}]}
        for function in ({"name": "weather", "arguments": piece} for piece in pieces)
    ]
    end = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}

    done = await asked(ChatServer(Reply([*chunks, end])), GenerateRequest(offer=OFFER))

    assert [("weather", {"city": "Oslo"})] == [(one.name, one.arguments) for one in done.calls]


async def test_the_choice_of_tools_is_told() -> None:
    server = ChatServer(calls_reply(("weather", '{"city": "Oslo"}')))
    offer = ToolOffer((WEATHER,), NamedTool("weather"), max_calls=1)

    await asked(server, GenerateRequest(offer=offer))

    named = {"type": "function", "function": {"name": "weather"}}
    assert named == server.bodies[0]["tool_choice"]
    assert server.bodies[0]["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("weather", '{"city": 5}'), "breaks 'type'"),
        (("weather", '{"city": '), "no JSON object"),
        (("rockets", "{}"), "no tool that it was offered: weather"),
    ],
)
async def test_a_call_that_nobody_could_make_is_refused_here(
    call: tuple[str, str], words: str
) -> None:
    with pytest.raises(EngineError, match="EN406") as raised:
        await asked(ChatServer(calls_reply(call)), GenerateRequest(offer=OFFER))

    assert words in raised.value.message


async def test_a_server_that_does_not_stream_is_understood_too() -> None:
    message = {"role": "assistant", "content": "Hello."}
    whole = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE}
    server = ChatServer(Reply(body=json.dumps(whole)))

    done = await asked(server, GenerateRequest())

    assert "Hello." == done.text
    assert 16 == done.usage.reused_tokens


async def test_tokens_are_not_counted_without_a_tokenizer() -> None:
    async with opened(ChatServer()) as backend:
        with pytest.raises(EngineError, match="tokenizer"):
            backend.token_meter.count_tokens("text")
