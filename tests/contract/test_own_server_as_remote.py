"""`flowforge serve` as the server of a remote model, and under the load of the bench."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner
from served import MODEL, Served, Setting, served

from flowforge.backends.protocol import GenerateRequest, GenerationDone, Sampling, TextDelta
from flowforge.backends.remote.backend import open_remote
from flowforge.cli.app import app
from flowforge.errors import EngineError
from flowforge.language.remote_models import RemoteModel
from flowforge.serving.recording import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from flowforge.backends.protocol import Conversation
    from flowforge.backends.remote.backend import RemoteBackend
    from flowforge.language.remote_models import Dialect


@asynccontextmanager
async def remote(
    server: Served, dialect: Dialect = "openai", **changed: Any
) -> AsyncGenerator[RemoteBackend]:
    model = RemoteModel("own", f"{server.url}/v1", MODEL, dialect, attempts=1, **changed)
    async with open_remote(model) as backend:
        yield backend


async def written(conversation: Conversation, request: GenerateRequest) -> GenerationDone:
    done: GenerationDone | None = None
    async for item in conversation.generate(request):
        if isinstance(item, GenerationDone):
            done = item
    assert done is not None
    return done


@pytest.mark.parametrize(
    ("dialect", "asked", "text"),
    [
        ("openai", GenerateRequest(), "hello there"),
        ("openai", GenerateRequest(Sampling(stop=("the",))), "hello "),
        ("openai", GenerateRequest(Sampling(max_tokens=5)), "hello"),
        (
            "openai",
            GenerateRequest(Sampling(max_tokens=60, temperature=0), choice=("aye", "no")),
            "aye",
        ),
        (
            "openai",
            GenerateRequest(Sampling(max_tokens=60, temperature=0), json_schema={"const": [1]}),
            "[1]",
        ),
    ],
)
async def test_it_answers_as_it_is_asked(
    server: Served, dialect: Dialect, asked: GenerateRequest, text: str
) -> None:
    async with remote(server, dialect) as backend:
        conversation = await backend.open(system="Be brief.")
        conversation.add_user("say hello there")
        done = await written(conversation, asked)

    assert text == done.text
    assert 0 < done.usage.generated_tokens
    assert 20 < done.usage.prompt_tokens


async def test_forks_find_what_was_computed_before(server: Served) -> None:
    async with remote(server) as backend:
        conversation = await backend.open(system="A system prompt of some length, for a cache.")
        conversation.add_user("say one")
        first = await written(conversation, GenerateRequest())
        forks = [await conversation.fork() for _ in range(2)]
        usages = []
        for idx, fork in enumerate(forks):
            fork.add_user(f"say {idx}")
            usages.append((await written(fork, GenerateRequest())).usage)

    for usage in usages:
        # A page may be computed again, where texts become other tokens than those written.
        assert usage.reused_tokens >= first.usage.prompt_tokens - 16


async def test_a_cancel_gives_its_pages_back(server: Served) -> None:
    async with remote(server) as backend:
        conversation = await backend.open()
        conversation.add_user("count")
        items = conversation.generate(GenerateRequest(Sampling(max_tokens=3_000)))
        async for item in items:
            if isinstance(item, TextDelta):
                break
        await items.aclose()

    await anyio.to_thread.run_sync(server.check_nothing_held)


async def test_what_it_refuses_is_told_in_its_words(server: Served) -> None:
    async with remote(server) as backend:
        conversation = await backend.open()
        conversation.add_user("say hello")
        with pytest.raises(EngineError, match="EN405") as raised:
            await written(conversation, GenerateRequest(Sampling(temperature=5.0)))

    assert "temperature" in raised.value.message


def test_it_is_benched_and_what_it_records_is_replayed(tmp_path: Path) -> None:
    recording = tmp_path / "traffic.jsonl"

    def bench(url: str, *arguments: object) -> dict[str, Any]:
        order = ["bench", "serve", f"{url}/v1", "--json", *map(str, arguments)]
        result = CliRunner().invoke(app, order)
        assert 0 == result.exit_code, result.output
        figures: dict[str, Any] = json.loads(result.stdout)["figures"][0]
        return figures

    with Recorder(recording) as recorder, served(Setting(recorder=recorder)) as server:
        asked = bench(
            *(server.url, "--requests", 6, "-c", 3, "--input", 20, "--output", 8),
            *("--shared", 0.8, "--json-ratio", 0),
        )
        lines = recording.read_text().splitlines()
        replayed = bench(server.url, "--replay", recording, "--speed", 100)

    assert (6, 0, 48) == tuple(
        asked[name] for name in ("num_requests", "num_failed", "output_tokens")
    )
    assert asked["cached_share"] > 0.5
    # The warm-up was recorded too.
    assert 7 == len(lines) == replayed["num_requests"]
    assert 0 == replayed["num_failed"]
