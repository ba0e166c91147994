"""Completions, tokens and the description over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import openai
import pytest
from served import MODEL, Served, Setting, post, served

from flowforge.serving.recording import Recorder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("more", [{}, {"max_tokens": None}])
def test_a_text_goes_on_for_sixteen_tokens_unless_it_is_told_otherwise(
    client: openai.OpenAI, more: dict[str, Any]
) -> None:
    answer = client.completions.create(model=MODEL, prompt="abc", **more)

    assert ("3456789 01234567", "length") == (
        answer.choices[0].text,
        answer.choices[0].finish_reason,
    )


def test_several_prompts_are_answered_in_their_order(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a", "abcd"], max_tokens=3, n=2)

    assert ["123", "123", "456", "456"] == [choice.text for choice in answer.choices]
    assert [0, 1, 2, 3] == [choice.index for choice in answer.choices]
    assert answer.usage is not None
    assert (5, 12) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)


def test_a_prompt_may_be_tokens(client: openai.OpenAI, server: Served) -> None:
    ids = post(server, "/tokenize", prompt="abc").json()["tokens"]

    one = client.completions.create(model=MODEL, prompt=ids, max_tokens=2)
    two = client.completions.create(model=MODEL, prompt=[ids, ids[:1]], max_tokens=2)

    assert ["34"] == [choice.text for choice in one.choices]
    assert ["34", "12"] == [choice.text for choice in two.choices]


def test_an_echo_comes_with_the_log_probabilities_of_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="0123", max_tokens=2, echo=True, logprobs=1
    )
    told = answer.choices[0].logprobs

    assert "012345" == answer.choices[0].text
    assert told is not None
    logprobs: list[float | None] = [*(told.token_logprobs or ())]
    assert [*"012345"] == told.tokens
    assert [0, 1, 2, 3, 4, 5] == told.text_offset
    assert logprobs[0] is None
    # Each digit is what the stand-in wanted to say behind those before it.
    assert all(one is not None and one > -0.01 for one in logprobs[1:])


def test_an_echo_alone_writes_nothing(server: Served) -> None:
    before = server.statistics().generated_tokens
    answer = post(server, "/v1/completions", prompt="ab", max_tokens=0, echo=True, logprobs=0)

    choice = answer.json()["choices"][0]
    assert ("ab", "length") == (choice["text"], choice["finish_reason"])
    assert 2 == len(choice["logprobs"]["token_logprobs"])
    assert before == server.statistics().generated_tokens


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    chunks = [
        *client.completions.create(
            model=MODEL,
            prompt=["abc", "a"],
            max_tokens=3,
            stream=True,
            echo=True,
            logprobs=0,
            stream_options={"include_usage": True},
        )
    ]
    texts = {0: "", 1: ""}
    offsets: dict[int, list[int]] = {0: [], 1: []}
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.logprobs is not None:
            offsets[choice.index] += choice.logprobs.text_offset or []

    assert {0: "abc345", 1: "a123"} == texts
    assert {0: [0, 1, 2, 3, 4, 5], 1: [0, 1, 2, 3]} == offsets
    assert [] == chunks[-1].choices
    assert chunks[-1].usage is not None and 4 == chunks[-1].usage.prompt_tokens


@pytest.mark.parametrize(("body", "param", "words"), [
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": [[]]}, "prompt", "empty"),
    ({"prompt": [1, "a"]}, "prompt", "prompt"),
    ({"prompt": [99999]}, "prompt", "99999"),
    ({"prompt": [-1]}, "prompt", "-1"),
    ({"prompt": "a", "suffix": "b"}, "suffix", "suffix"),
    ({"prompt": "a", "best_of": 3}, "best_of", "best_of"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens", "max_tokens"),
    ({"prompt": "a", "max_tokens": 4096}, "max_tokens", "4,096"),
    ({"prompt": ["a"] * 100, "n": 2}, "prompt", "200"),
    ({"prompt": "a", "min_tokens": 20}, "min_tokens", "min_tokens"),
])  # fmt: skip
def test_a_bad_completion_is_refused(
    server: Served, body: dict[str, Any], param: str | None, words: str
) -> None:
    answer = post(server, "/v1/completions", **body)

    assert 400 == answer.status_code, answer.text
    assert param == answer.json()["error"]["param"]
    assert words in answer.json()["error"]["message"]


def test_tokens_and_texts_are_turned_into_each_other(server: Served) -> None:
    told = post(server, "/v1/tokenize", prompt="aé", return_token_strs=True).json()

    assert (3, ["a", "\ufffd", "\ufffd"]) == (told["count"], told["token_strs"])
    assert 4096 == told["max_model_len"]
    back = post(server, "/v1/detokenize", tokens=told["tokens"])
    assert {"prompt": "aé"} == back.json()
    for path, body, param in (
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, None),
        ("/detokenize", {"tokens": [99999]}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
    ):
        answer = post(server, path, **body)
        assert (400, param) == (answer.status_code, answer.json()["error"]["param"])


def test_the_official_client_works_on_an_event_loop(server: Served) -> None:
    async def main() -> tuple[str | None, str]:
        address = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key="none") as client:
            messages: Any = [{"role": "user", "content": "say hello"}]
            whole = await client.chat.completions.create(model=MODEL, messages=messages)
            stream = await client.chat.completions.create(
                model=MODEL, messages=messages, stream=True
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return whole.choices[0].message.content, "".join(pieces)

    assert ("hello", "hello") == anyio.run(main)


def test_the_description_names_every_route(server: Served) -> None:
    document = httpx2.get(f"{server.url}/openapi.json", timeout=60).json()
    page = httpx2.get(f"{server.url}/docs", timeout=60)

    assert document["openapi"].startswith("3.1")
    routes = {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model}", "/tokenize",
        "/detokenize", "/v1/workflows", "/v1/workflows/{name}", "/v1/workflows/{name}/runs",
        "/v1/runs", "/v1/runs/{run_id}", "/v1/runs/{run_id}/events", "/v1/runs/{run_id}/answers",
        "/v1/runs/{run_id}/cancel", "/health", "/metrics",
    }  # fmt: skip
    assert routes == set(document["paths"])
    assert "text/html; charset=utf-8" == page.headers["content-type"]
    assert all(path in page.text for path in routes)


def test_metrics_have_the_names_that_dashboards_know(server: Served) -> None:
    httpx2.get(f"{server.url}/v1/models", timeout=60)
    answer = httpx2.get(f"{server.url}/metrics", timeout=60)

    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {
        line.split("{")[0].split(" ")[0]
        for line in answer.text.splitlines()
        if not line.startswith("#")
    }
    wanted = """
        num_requests_running num_requests_waiting kv_cache_usage_perc kv_evictable_tokens
        prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total
        prompt_tokens_total prompt_tokens_cached_total generation_tokens_total
        evicted_tokens_total num_grammar_queue_reqs num_grammar_timeout_total
        num_aborted_requests_total forks_total fork_copied_tokens_total shared_kv_tokens_total
        attention_kv_tokens_read_total attention_kv_tokens_logical_total
        constraint_masks_total constraint_mask_seconds_total constraint_mask_wait_seconds_total
        seconds_since_last_token engine_silent_seconds http_requests_total
        time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket
        e2e_request_latency_seconds_bucket request_queue_time_seconds_bucket
    """
    assert set() == {f"flowforge:{name}" for name in wanted.split()} - names


def test_requests_are_recorded_for_a_bench(tmp_path: Path) -> None:
    file = tmp_path / "traffic.jsonl"
    messages = [{"role": "user", "content": "say hi"}]
    with Recorder(file) as recorder, served(Setting(recorder=recorder)) as server:
        post(server, "/v1/chat/completions", messages=messages)
        post(server, "/v1/completions", prompt="abc", max_tokens=2, stream=True)

    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert ("/v1/chat/completions", messages) == (first["path"], first["body"]["messages"])
    assert 3 == first["usage"]["completion_tokens"]
    assert ("/v1/completions", 2) == (second["path"], second["usage"]["completion_tokens"])
    assert 0 <= first["time_s"] <= second["time_s"]
    assert 0o600 == file.stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"), [("x" * 5000, 16, "prompt"), ("x", 5000, "max_tokens")]
)
def test_what_leaves_no_room_is_named_by_its_field(
    client: openai.OpenAI, prompt: str, max_tokens: int, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt=prompt, max_tokens=max_tokens)

    assert ("context_length_exceeded", param) == (refused.value.code, refused.value.param)


def test_half_a_surrogate_pair_is_a_fault_of_the_prompt(server: Served) -> None:
    answer = post(server, "/v1/completions", prompt="a\ud800b")

    assert (400, "prompt") == (answer.status_code, answer.json()["error"]["param"])
