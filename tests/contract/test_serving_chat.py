"""Chats over HTTP: shapes, order of chunks, forms, limits, as clients of the OpenAI API rely on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest
from pydantic import BaseModel
from served import MODEL, Served, post
from spoken_model import TOKENIZER

from flowforge.grammars import compilation

if TYPE_CHECKING:
    from pathlib import Path

    from openai.types.chat import ChatCompletionChunk

NUMBERS: list[Any] = [{"role": "user", "content": "count"}]


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": f"say {text}"}]


def events(server: Served, **body: Any) -> list[Any]:
    """The data of each event of a streamed chat, as they were sent."""
    response = post(server, "/v1/chat/completions", stream=True, **body)
    assert 200 == response.status_code, response.text
    blocks = response.text.removesuffix("\n\n").split("\n\n")
    texts = [block.removeprefix("data: ") for block in blocks]
    assert "[DONE]" == texts.pop()
    return [json.loads(text) for text in texts]


# -- the order and shape of what is sent ----------------------------------------------------------


def test_a_chat_is_answered_whole(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=say("hello"))

    (choice,) = answer.choices
    assert ("hello", "stop", "assistant") == (
        choice.message.content,
        choice.finish_reason,
        choice.message.role,
    )
    assert ("chat.completion", MODEL) == (answer.object, answer.model)


def test_chunks_come_in_order_and_end_once(server: Served) -> None:
    chunks = events(server, messages=say("hi"))

    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [{"role": "assistant", "content": "", "refusal": None}, *deltas[1:]] == deltas
    assert [{"content": "h"}, {"content": "i"}, {}] == deltas[1:]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert [None, None, None, "stop"] == reasons
    assert 1 == len({(one["id"], one["created"], one["model"]) for one in chunks})


def test_a_stream_tells_its_usage_when_it_is_asked_to(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=say("hi"), stream=True, stream_options={"include_usage": True}
    )
    chunks: list[ChatCompletionChunk] = [*stream]

    assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])
    assert [] == chunks[-1].choices
    usage = chunks[-1].usage
    assert usage is not None
    # The text and the mark that ends the turn.
    assert 3 == usage.completion_tokens
    assert usage.total_tokens == usage.prompt_tokens + 3


def test_what_a_prompt_shares_with_an_earlier_one_is_told_as_cached(client: openai.OpenAI) -> None:
    first = say("cached " + "x" * 100)
    client.chat.completions.create(model=MODEL, messages=first)
    again = client.chat.completions.create(model=MODEL, messages=first)

    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    # The logits behind the last token are wanted again.
    assert cached >= again.usage.prompt_tokens - 1


def test_choices_are_forks_of_one_prompt(server: Served, client: openai.OpenAI) -> None:
    before = server.statistics()
    answer = client.chat.completions.create(model=MODEL, messages=say("forked"), n=3)
    after = server.statistics()

    assert ["forked"] * 3 == [choice.message.content for choice in answer.choices]
    assert [0, 1, 2] == [choice.index for choice in answer.choices]
    assert 3 == after.forks - before.forks
    assert answer.usage is not None
    assert after.prefilled_tokens - before.prefilled_tokens <= answer.usage.prompt_tokens
    assert 3 * 7 == answer.usage.completion_tokens


def test_each_choice_of_a_stream_ends_once(server: Served) -> None:
    chunks = events(server, messages=say("ab"), n=2)

    for index in (0, 1):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "ab" == "".join(one["delta"].get("content", "") for one in own)
        assert ["stop"] == [one["finish_reason"] for one in own if one["finish_reason"]]


# -- length, stops, seeds -------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [
    {"max_completion_tokens": 5},
    {"max_tokens": 5},
    {"max_tokens": 5, "max_completion_tokens": 5},
    {"max_tokens": 9, "max_completion_tokens": 5},
])  # fmt: skip
def test_the_newer_limit_of_tokens_wins(client: openai.OpenAI, limits: dict[str, int]) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=NUMBERS, extra_body=limits)

    assert "01234" == answer.choices[0].message.content
    assert "length" == answer.choices[0].finish_reason
    assert answer.usage is not None and 5 == answer.usage.completion_tokens


@pytest.mark.parametrize("stop", ["5", ["x", "45"], ["34567", "5"]])
def test_the_text_ends_before_a_stop(client: openai.OpenAI, stop: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=NUMBERS, stop=stop)

    text = answer.choices[0].message.content
    assert ("01234" if stop != ["x", "45"] else "0123") == text
    assert "stop" == answer.choices[0].finish_reason


def test_a_seed_gives_the_same_choices_again(client: openai.OpenAI) -> None:
    def ask(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=NUMBERS,
            seed=seed,
            n=2,
            max_tokens=24,
            temperature=2,
            logit_bias={str(one): 15 for one in range(100)},
        )
        return [choice.message.content for choice in answer.choices]

    first = ask(7)

    assert first == ask(7)
    assert first != ask(8)
    assert first[0] != first[1]


def test_a_prompt_that_leaves_no_room_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=say("x" * 5000))

    assert ("context_length_exceeded", "messages") == (refused.value.code, refused.value.param)
    assert "4,096" in refused.value.message


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_that_leaves_no_room_names_the_field_that_asks_for_it(
    client: openai.OpenAI, field: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=say("x"), extra_body={field: 5000})

    assert ("context_length_exceeded", field) == (refused.value.code, refused.value.param)


# -- log probabilities ----------------------------------------------------------------------------


def test_tokens_that_are_parts_of_a_character_have_their_bytes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=say("é"), logprobs=True, top_logprobs=2
    )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [[0xC3], [0xA9]] == [one.bytes for one in logprobs.content]
    assert all(2 == len(one.top_logprobs) for one in logprobs.content)
    assert all(one.top_logprobs[0].token == one.token for one in logprobs.content)


def test_a_stream_tells_each_token_once_and_never_half_a_character(server: Served) -> None:
    chunks = events(server, messages=say("aé!"), logprobs=True)

    deltas = [chunk["choices"][0] for chunk in chunks]
    assert ["a", "é", "!"] == [one["delta"]["content"] for one in deltas[1:-1]]
    tokens = [one["logprobs"]["content"] for one in deltas[1:-1]]
    assert [[[97]], [[0xC3], [0xA9]], [[33]]] == [
        [entry["bytes"] for entry in entries] for entries in tokens
    ]


# -- forms ----------------------------------------------------------------------------------------


class Person(BaseModel):
    """What an answer must be."""

    name: str
    age: int


def test_an_answer_is_parsed_into_a_pydantic_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=say('{"name":"Bo","age":42}'), response_format=Person
    )

    assert Person(name="Bo", age=42) == answer.choices[0].message.parsed


def test_a_strict_form_holds_whatever_is_drawn(client: openai.OpenAI) -> None:
    schema: Any = {
        "type": "object",
        "properties": {"what": {"type": "string", "maxLength": 5}, "n": {"type": "integer"}},
        "required": ["what", "n"],
        "additionalProperties": False,
    }
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": schema, "strict": True},
    }
    answer = client.chat.completions.create(
        model=MODEL,
        messages=NUMBERS,
        temperature=1.5,
        seed=3,
        n=50,
        max_tokens=40,
        response_format=form,
    )

    whole = [one for one in answer.choices if one.finish_reason == "stop"]
    values = [json.loads(one.message.content or "") for one in whole]
    assert len(whole) > 10
    assert all(["what", "n"] == [*value] and type(value["n"]) is int for value in values)


def test_a_json_object_is_an_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=say('{"a":[1]}'), response_format={"type": "json_object"}
    )

    assert {"a": [1]} == json.loads(answer.choices[0].message.content or "")


def test_a_form_that_is_cut_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL,
            messages=say('{"name":"Bo","age":42}'),
            response_format=Person,
            max_tokens=3,
        )


def test_a_form_never_ends_in_white_space_without_end(client: openai.OpenAI) -> None:
    form: Any = {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}},
                "required": ["a"],
            },
        },
    }
    answer = client.chat.completions.create(
        model=MODEL,
        messages=NUMBERS,
        temperature=0,
        max_tokens=200,
        # A model that always prefers white space where it may.
        logit_bias={str(one): 100 for one in range(256) if _is_white(one)},
        response_format=form,
    )

    assert "stop" == answer.choices[0].finish_reason
    assert ["a"] == [*json.loads(answer.choices[0].message.content or "")]


def _is_white(token_id: int) -> bool:
    return TOKENIZER.token_bytes(token_id) in (b" ", b"\n", b"\t", b"\r")


def _ends(token_id: int) -> bool:
    return TOKENIZER.token_bytes(token_id) == b"}"


@pytest.mark.parametrize(("schema", "keyword"), [
    ({"type": "string", "pattern": "^(?=a)b"}, "pattern"),
    ({"$ref": "http://x.example/s.json"}, "$ref"),
    ({"not": {"type": "string"}}, "not"),
])  # fmt: skip
def test_a_schema_is_held_to_or_refused_with_its_keyword(
    server: Served, schema: dict[str, Any], keyword: str
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = post(
        server,
        "/v1/chat/completions",
        messages=say("1"),
        response_format=form,
        temperature=0,
        max_tokens=50,
    )

    if answer.status_code == 200:
        assert "stop" == answer.json()["choices"][0]["finish_reason"]
        assert not isinstance(json.loads(_text(answer)), str)
    else:
        assert 400 == answer.status_code
        assert keyword in answer.json()["error"]["message"]
        assert "response_format" == answer.json()["error"]["param"]


@pytest.mark.parametrize("schema", [
    {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 99},
    {"type": "object", "patternProperties": {"^x[0-9]$": {"const": 4}}, "required": ["n"],
     "properties": {"n": {"type": "boolean"}}, "additionalProperties": False},
])  # fmt: skip
def test_what_can_be_held_to_is(server: Served, schema: dict[str, Any]) -> None:
    import jsonschema

    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = post(
        server,
        "/v1/chat/completions",
        messages=say("1"),
        response_format=form,
        temperature=0,
        max_tokens=50,
        # Whatever may be closed is closed.
        logit_bias={str(one): 100 for one in range(256) if _ends(one)},
    )

    assert 200 == answer.status_code, answer.text
    jsonschema.validate(json.loads(_text(answer)), schema)


@pytest.mark.parametrize(("extra", "text"), [
    ({"structured_outputs": {"choice": ["yes", "no"]}}, {"yes", "no"}),
    ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
    ({"structured_outputs": {"regex": "[ab]{3}"}}, {"aaa"}),
    ({"guided_regex": "x{2}"}, {"xx"}),
    ({"structured_outputs": {"grammar": 'start: "p" "q"'}}, {"pq"}),
    ({"structured_outputs": {"json": {"const": 7}}}, {"7"}),
    ({"guided_json": '{"const": 7}'}, {"7"}),
])  # fmt: skip
def test_forms_of_other_servers_are_understood(
    server: Served, extra: dict[str, Any], text: set[str]
) -> None:
    answer = post(server, "/v1/chat/completions", messages=NUMBERS, temperature=0, **extra)

    assert 200 == answer.status_code, answer.text
    assert _text(answer) in text


HALF = "a\ud800b"
SCHEMA_OF_HALF = {"type": "object", "properties": {HALF: {}}}


@pytest.mark.parametrize(("extra", "param"), [
    ({"guided_regex": HALF}, "guided_regex"),
    ({"guided_choice": ["c", HALF]}, "guided_choice"),
    ({"guided_grammar": f'start: "{HALF}"'}, "guided_grammar"),
    ({"guided_json": {"enum": [HALF]}}, "guided_json"),
    ({"guided_json": {"type": "string", "pattern": HALF}}, "guided_json"),
    ({"guided_json": json.dumps(SCHEMA_OF_HALF)}, "guided_json"),
    ({"structured_outputs": {"regex": HALF}}, "structured_outputs.regex"),
    ({"structured_outputs": {"json": {"const": HALF}}}, "structured_outputs.json"),
    (
        {"response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA_OF_HALF},
        }},
        "response_format",
    ),
])  # fmt: skip
def test_a_form_with_half_a_surrogate_pair_is_refused_by_its_field(
    server: Served, extra: dict[str, Any], param: str
) -> None:
    answer = post(server, "/v1/chat/completions", messages=NUMBERS, **extra)

    assert 400 == answer.status_code, answer.text
    error = answer.json()["error"]
    assert param == error["param"]
    assert "is U+D800, half a surrogate pair" in error["message"]


@pytest.mark.parametrize(("extra", "param"), [
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_grammar": "x"}, "guided_grammar"),
    ({"guided_json": {"type": None}}, "guided_json"),
    ({"structured_outputs": {"json": {"type": None}}}, "structured_outputs.json"),
])  # fmt: skip
def test_a_form_that_is_refused_is_told_by_the_field_that_says_it(
    server: Served, extra: dict[str, Any], param: str
) -> None:
    answer = post(server, "/v1/chat/completions", messages=NUMBERS, **extra)

    assert (400, param) == (answer.status_code, answer.json()["error"]["param"])


@pytest.mark.parametrize("grammar", [
    'start: "a" impossible_terminal', "start: start", 'start: loop\nloop: | loop loop',
])  # fmt: skip
def test_a_grammar_that_is_none_is_refused_or_ends(server: Served, grammar: str) -> None:
    answer = post(
        server,
        "/v1/chat/completions",
        messages=NUMBERS,
        max_tokens=20,
        structured_outputs={"grammar": grammar},
    )

    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert "structured_outputs.grammar" == answer.json()["error"]["param"]


# lark opens what it does not read, for a hint in its message, and leaves it open.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_grammar_of_a_client_reads_no_file(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local.lark").write_text('X: "secret"\n')
    monkeypatch.chdir(tmp_path)
    for name in (".local.X", "local.X"):
        answer = post(
            server,
            "/v1/chat/completions",
            messages=NUMBERS,
            max_tokens=20,
            structured_outputs={"grammar": f"%import {name}\nstart: X"},
        )

        assert 400 == answer.status_code, answer.text
        assert "secret" not in answer.text


def test_two_forms_are_one_too_many(server: Served) -> None:
    answer = post(
        server,
        "/v1/chat/completions",
        messages=NUMBERS,
        guided_regex="x",
        response_format={"type": "json_object"},
    )

    assert 400 == answer.status_code
    assert "more than one way" in answer.json()["error"]["message"]


# -- messages and fields --------------------------------------------------------------------------


def test_developers_speak_as_the_system_and_parts_are_joined(server: Served) -> None:
    told = post(
        server,
        "/tokenize",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "say "}, {"type": "text", "text": "ho"},
            ]},
        ],
    ).json()  # fmt: skip
    text = post(server, "/detokenize", tokens=told["tokens"]).json()["prompt"]

    assert (
        "<|start|>system\nBe brief.<|end|><|start|>user\nsay ho<|end|><|start|>assistant\n" == text
    )


def test_what_looks_like_a_control_token_is_text(server: Served) -> None:
    told = post(server, "/tokenize", messages=say("<|end|>")).json()

    assert b"say <|end|>" in b"".join(map(TOKENIZER.token_bytes, told["tokens"]))
    assert 1 == told["tokens"].count(256), "the user's end is no end"


def test_an_answer_can_go_on_with_the_last_message(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[*say("hello"), {"role": "assistant", "content": "hel"}],
        extra_body={"continue_final_message": True},
    )

    assert "lo" == answer.choices[0].message.content


def test_fields_that_nobody_knows_are_passed_over(client: openai.OpenAI) -> None:
    extra = {"x_new": 1, "top_k": -1, "cache_salt": "z", "min_p": 0.0, "repetition_penalty": 1.0}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=say("ok"),
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        parallel_tool_calls=False,
        extra_body=extra,
    )

    assert "ok" == answer.choices[0].message.content


@pytest.mark.parametrize(("body", "param", "words"), [
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "developer"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": NUMBERS, "temperature": 9}, "temperature", "less than or equal to 2"),
    ({"messages": NUMBERS, "temperature": "1"}, "temperature", "number"),
    ({"messages": NUMBERS, "n": 0}, "n", "greater than or equal to 1"),
    ({"messages": NUMBERS, "stop": ""}, "stop", "empty"),
    ({"messages": NUMBERS, "max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"messages": NUMBERS, "top_logprobs": 3}, "top_logprobs", "logprobs"),
    ({"messages": NUMBERS, "logit_bias": {"x": 1}}, "logit_bias", "no token id"),
    ({"messages": NUMBERS, "logit_bias": {"99999": 1}}, "logit_bias", "not in the vocabulary"),
    ({"messages": NUMBERS, "logit_bias": {"5": 1000}}, "logit_bias", "from -100 to 100"),
    ({"messages": 5}, "messages", "should be an array"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content",
     "should be a string or an array"),
    ({"messages": NUMBERS, "response_format": "json"}, "response_format", "should be an object"),
    ({"messages": NUMBERS, "stream": "yes"}, "stream", "should be true or false"),
    ({"messages": NUMBERS, "n": "2"}, "n", "should be a whole number"),
    ({"messages": NUMBERS, "guided_json": "[1]"}, "guided_json", "an array, expected an object"),
    ({"messages": [*NUMBERS, {"role": "tool", "content": "42"}]}, "messages",
     "tool_call_id is missing"),
    ({"messages": NUMBERS, "tool_choice": "required"}, "tool_choice", "tools"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    ({"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://x.example/a.png"}}]}]},
     "messages[0].content", "'image_url'"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "surrogate"),
    ({"messages": NUMBERS, "response_format": {"type": "json_schema"}}, "response_format",
     "json_schema is missing"),
    ({"messages": [*NUMBERS, {"role": "tool", "tool_call_id": "zz", "content": "42"}]},
     "messages", "'zz'"),
    ({"messages": [*NUMBERS, {"role": "assistant", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        *NUMBERS]}, "messages", "'c1'"),
])  # fmt: skip
def test_a_bad_request_is_told_in_the_shape_that_clients_read(
    server: Served, body: dict[str, Any], param: str | None, words: str
) -> None:
    content = json.dumps({"model": MODEL, **body})
    answer = httpx2.post(f"{server.url}/v1/chat/completions", content=content, timeout=60)

    assert 400 == answer.status_code, answer.text
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} == set(error)
    assert "invalid_request_error" == error["type"]
    assert param == error["param"]
    assert words in error["message"], error["message"]


@pytest.mark.parametrize(("content", "words"), [
    (b"{", "no JSON"), (b"[]", "is an array, expected an object"), (b"", "no JSON"),
    (b"null", "is null, expected an object"), (b"true", "is a boolean, expected an object"),
    (b'{"model": NaN}', "NaN is no number of JSON"), (b'{"a":' * 5000, "nested too deep"),
    (b"\xff", "not UTF-8"), (b'{"x":' + b"[" * 300 + b"]" * 300 + b"}", "nested deeper"),
])  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(
    server: Served, content: bytes, words: str
) -> None:
    answer = httpx2.post(f"{server.url}/v1/chat/completions", content=content, timeout=60)

    assert 400 == answer.status_code
    assert "invalid_json" == answer.json()["error"]["code"]
    assert words in answer.json()["error"]["message"]


def test_what_is_not_there_is_told_with_its_status(client: openai.OpenAI, server: Served) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=NUMBERS)
    assert ("model_not_found", "model") == (unknown.value.code, unknown.value.param)

    wrong = httpx2.get(f"{server.url}/v1/chat/completions", timeout=60)
    assert (405, "POST") == (wrong.status_code, wrong.headers["allow"])
    assert "method_not_allowed" == wrong.json()["error"]["code"]

    nowhere = httpx2.get(f"{server.url}/v1/nothing", timeout=60)
    assert (404, "unknown_url") == (nowhere.status_code, nowhere.json()["error"]["code"])


def test_long_names_of_what_is_not_there_are_told_in_part(
    client: openai.OpenAI, server: Served
) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="m" * 30_000, messages=NUMBERS)
    nowhere = httpx2.get(f"{server.url}/{'n' * 30_000}", timeout=60)

    assert 300 > len(unknown.value.message)
    assert 400 > len(nowhere.text)
    assert "nnn…" in nowhere.json()["error"]["message"]


def test_models_are_a_list_of_objects(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data

    assert (MODEL, "model", "flowforge") == (model.id, model.object, model.owned_by)
    assert model == client.models.retrieve(MODEL)


def _text(answer: httpx2.Response) -> str:
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def test_a_form_that_is_late_is_counted_and_none_that_only_says_so(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pattern: str) -> int:
        body = {"messages": say("x"), "structured_outputs": {"regex": pattern}}
        answer = post(server, "/v1/chat/completions", **body)
        assert 400 == answer.status_code
        return server.service.counts.num_grammar_timeouts

    assert 0 == refused("it took longer(")

    def too_late(seconds: float, _work: object) -> None:
        raise compilation.GrammarLate(f"it took longer than {seconds:g} s to compile")

    monkeypatch.setattr(compilation, "within", too_late)
    assert 1 == refused("a pattern that nobody has compiled yet")
