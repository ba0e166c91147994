"""`flowforge bench serve` against a server on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from chat_server import JSON, ChatServer, Reply, error_reply, remote_model, text_reply
from click.testing import CliRunner
from socket_chat_server import serving

from flowforge.backends.remote.server import RemoteServer, client_for
from flowforge.bench.load.sending import send
from flowforge.bench.load.traffic import Ask
from flowforge.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

QUICK = ("--requests", 8, "-c", 2, "--input", 5, "--output", 4)


def _bench(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", "serve", *map(str, arguments)])


def _told(result: Result) -> dict[str, Any]:
    assert result.exit_code in (0, 1), result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def _answer(body: JSON) -> Reply:
    is_form = "response_format" in body
    return text_reply('{"a":', "1}") if is_form else text_reply("one ", "two")


def test_a_server_is_asked_and_measured(tmp_path: Path) -> None:
    with serving(_answer) as server:
        result = _bench(
            *(server.url, *QUICK, "--json", "--json-ratio", 0.5),
            *("--plot", tmp_path / "p.svg", "--save", tmp_path / "b.json"),
        )
        again = _bench(server.url, *QUICK, "--json-ratio", 0.5, "--tolerance", 1)

    told = _told(result)
    figures = told["figures"][0]
    assert (8, 0) == (figures["num_requests"], figures["num_failed"])
    assert (56, 160, 0.8) == (
        *(figures["output_tokens"], figures["prompt_tokens"], figures["cached_share"]),
    )
    assert 0 < figures["ttft"]["p50"] <= figures["e2e"]["p50"]
    assert "first-model" == server.bodies[0]["model"]
    assert 0 < sum("response_format" in body for body in server.bodies) < len(server.bodies)
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    assert "p50 / p90 / p99" in again.stdout


def test_a_baseline_that_was_better_fails_the_bench(tmp_path: Path) -> None:
    with serving(_answer) as server:
        saved = tmp_path / "b.json"
        _bench(server.url, *QUICK, "--save", saved)
        kept = json.loads(saved.read_text())
        # Nothing is as quick as this, and nothing as slow.
        kept["figures"]["output_rate"] = 1e12
        saved.write_text(json.dumps(kept))
        worse = _bench(server.url, *QUICK, "--baseline", saved)
        other = _bench(server.url, *QUICK, "--seed", 5, "--baseline", saved)

    assert 1 == worse.exit_code
    assert "worse than the baseline" in worse.stderr
    assert 2 == other.exit_code
    assert "WF536" in other.stderr


def test_two_servers_are_asked_the_same_in_turns() -> None:
    with serving(_answer) as one, serving(lambda _: text_reply("x")) as two:
        told = _told(_bench(one.url, *QUICK, "--compare", two.url, "--json"))

    assert [8, 8] == [figures["num_requests"] for figures in told["figures"]]
    assert sorted(map(json.dumps, one.bodies)) == sorted(map(json.dumps, two.bodies))
    assert "ttft.p50" in [change["name"] for change in told["changes"]]


def test_the_limit_is_sought_under_a_service_level() -> None:
    with serving(_answer) as server:
        goals = ("--slo", "e2e_p50=10m", "--sweep", 4)
        told = _told(_bench(server.url, *QUICK, *goals, "--json"))
        never = _told(_bench(server.url, *QUICK, "--slo", "e2e_p50=0.001ms", "--json"))

    assert 4 == told["limit"]
    assert [1, 2, 4] == [figures["concurrency"] for figures in told["figures"]]
    assert ["e2e_p50=0.001ms"] == never["missed"]


def test_traffic_is_replayed(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    lines = [
        {
            "time_s": idx / 100,
            "path": "/v1/chat/completions",
            "body": {"model": "old", "messages": [{"role": "user", "content": f"{idx}"}]},
        }
        for idx in range(3)
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    with serving(_answer) as server:
        told = _told(_bench(server.url, "--replay", file, "--speed", 10, "--json"))

    assert 3 == told["figures"][0]["num_requests"]
    # The first is asked once before, as a warm-up.
    assert ["0", "0", "1", "2"] == sorted(body["messages"][0]["content"] for body in server.bodies)


def test_a_picture_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    with serving(_answer) as server:
        result = _bench(server.url, *QUICK, "--plot", tmp_path / "none" / "p.svg")

    assert 2 == result.exit_code
    assert "WF542" in result.stderr


def test_errors_are_counted_and_a_server_that_only_fails_fails_the_bench() -> None:
    with serving(lambda _: error_reply(503, "down")) as server:
        result = _bench(server.url, *QUICK, "--json")

    assert 1 == result.exit_code
    assert {"EN403": 8} == _told(result)["figures"][0]["errors"]


def test_an_answer_that_should_be_json_and_is_not_counts_as_failed() -> None:
    with serving(lambda _: text_reply("no json")) as server:
        told = _told(_bench(server.url, *QUICK, "--json-ratio", 1, "--json"))

    assert {"EN406": 8} == told["figures"][0]["errors"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("ftp://x",), 2, "WF535"),
        (("http://127.0.0.1:9/v1",), 4, "EN401"),
        (("http://h/v1", "--sweep", 3), 2, "--slo"),
        (("http://h/v1", "--slo", "fast"), 2, "WF535"),
        (("http://h/v1", "--replay", "none.jsonl"), 2, "WF535"),
    ],
)
def test_a_wrong_order_is_told_of(arguments: tuple[object, ...], code: int, words: str) -> None:
    result = _bench(*arguments)

    assert code == result.exit_code
    assert words in result.stderr


async def test_a_closed_loop_has_no_more_under_way_than_it_may() -> None:
    under_way: list[int] = []

    def answer(_: JSON) -> Reply:
        under_way.append(server.num_in_flight)
        return text_reply("x")

    chat = ChatServer(answer=answer)
    model = remote_model(attempts=1)
    async with client_for(model, chat.transport) as client:
        server = RemoteServer(model, client)
        sent = await send(server, [Ask({"messages": []})] * 12, 3)

    assert 12 == len(sent.samples)
    assert 3 == max(under_way)


async def test_an_open_loop_counts_from_the_time_at_which_a_request_was_due() -> None:
    clock = iter(float(number) for number in range(1_000))
    chat = ChatServer(answer=lambda _: text_reply("x", "y"))
    model = remote_model(attempts=1)
    async with client_for(model, chat.transport) as client:
        server = RemoteServer(model, client)
        with anyio.fail_after(30):
            # By this clock every look at it takes a second: all are late.
            asks = [Ask({"messages": []}, at_s=0.0)] * 2
            sent = await send(server, asks, None, now=lambda: next(clock))

    assert all(sample.wait_s > 0 for sample in sent.samples)
    assert all(sample.ttft_s > sample.wait_s for sample in sent.samples)
    assert all(1 == len(sample.gaps_s) for sample in sent.samples)
