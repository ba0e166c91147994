"""Clients that leave, dawdle or wait: what a server does about its streams."""

from __future__ import annotations

import json
import math
import re
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx2
import openai
import pytest
from served import MODEL, Served, Setting, served

from flowforge.serving.pace import Pace
from flowforge.serving.settings import ServerSettings, Waits

if TYPE_CHECKING:
    from collections.abc import Generator

    from flowforge.serving.admission import Admission

NUMBERS: Any = {"model": MODEL, "messages": [{"role": "user", "content": "count"}]}
_MANY = 2_000


@pytest.fixture
def server() -> Generator[Served]:
    with served() as one:
        yield one


def ask(server: Served, **more: Any) -> httpx2.Response:
    return httpx2.post(f"{server.url}/v1/chat/completions", json={**NUMBERS, **more}, timeout=60)


def connect(server: Served, **more: Any) -> socket.socket:
    """A connection on which a chat was asked for."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({**NUMBERS, **more}).encode()
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    return connection


def read_chunks(connection: socket.socket, number: int) -> None:
    """Read until so many events have come."""
    read = b""
    while read.count(b"data: ") < number:
        piece = connection.recv(4096)
        assert piece, "the stream ended"
        read += piece


def let_it_end(server: Served, num_aborted: int) -> None:
    """Allow step after step until so many generations are given up."""

    def is_over() -> bool:
        server.pace.allow()
        return server.service.backend.engine.statistics().requests.aborted >= num_aborted

    server.wait_until(is_over)


def test_a_client_that_leaves_a_stream_ends_its_generation(server: Served) -> None:
    server.pace.hold()
    connection = connect(server, stream=True, max_tokens=_MANY)
    server.pace.allow(4)
    read_chunks(connection, 4)
    connection.close()
    let_it_end(server, 1)
    server.pace.release()

    assert server.pace.num_steps < _MANY / 2
    server.check_nothing_held()
    server.wait_until(lambda: server.service.counts.num_gone == 1)
    later = ask(server, max_tokens=3)
    assert "012" == later.json()["choices"][0]["message"]["content"]


def test_a_client_that_waits_for_nothing_any_more_ends_its_generation(server: Served) -> None:
    server.pace.hold()
    for number in range(1, 5):
        connection = connect(server, max_tokens=_MANY)
        server.wait_until(lambda: server.service.admission.num_active == 1)
        server.pace.allow(2)
        connection.close()
        let_it_end(server, number)
        server.wait_until(lambda: server.service.admission.num_active == 0)
    server.pace.release()

    assert 200 == ask(server, max_tokens=3).status_code
    server.check_nothing_held()
    assert 4 == server.service.counts.num_gone


def test_a_client_that_leaves_ends_all_its_choices(server: Served) -> None:
    server.pace.hold()
    connection = connect(server, stream=True, max_tokens=_MANY, n=3)
    server.pace.allow(4)
    read_chunks(connection, 9)
    connection.close()
    let_it_end(server, 3)
    server.pace.release()

    server.check_nothing_held()
    assert 3 == server.statistics().requests.aborted


class _Long(Pace):
    """Streams rest until their texts end."""

    def rest_s(self, now_s: float | None = None) -> float:
        """See `Pace`."""
        return 3600


def test_a_stream_that_rests_is_told_together_what_came_and_its_end_at_once(
    server: Served,
) -> None:
    server.service.pace = _Long(server.service.admission)
    server.pace.hold()
    connection = connect(server, stream=True, max_tokens=5)
    server.pace.allow()
    read_chunks(connection, 2)
    server.pace.release()
    told = b""
    while b"[DONE]" not in told:
        told += connection.recv(4096)
    connection.close()

    assert [b'"content":"1234"'] == re.findall(b'"content":"[^"]*"', told)


@pytest.mark.parametrize(
    ("num_active", "rest_s"), [(1, 0.0), (4, 0.0), (10, 0.05), (16, 0.1), (500, 0.1)]
)
def test_streams_rest_by_their_number_until_a_beat_that_all_have(
    num_active: int, rest_s: float
) -> None:
    pace = Pace(cast("Admission", SimpleNamespace(num_active=num_active)))

    rests = {now_s: pace.rest_s(now_s) for now_s in (100.0, 100.01, 100.049, 7.06)}

    if rest_s == 0:
        assert {0.0} == set(rests.values())
        return
    for now_s, rest in rests.items():
        assert 0 < rest <= rest_s
        assert pytest.approx(0, abs=1e-9) == math.remainder(now_s + rest, rest_s)


def test_the_official_client_can_leave(server: Served) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(**NUMBERS, stream=True, max_tokens=_MANY)
        server.pace.hold()
        next(iter(stream))
        stream.close()
        let_it_end(server, 1)
        server.pace.release()

    server.check_nothing_held()


def test_nothing_is_given_up_that_came_to_its_end(server: Served) -> None:
    for idx in range(20):
        answer = ask(server, stream=idx % 2 == 0, max_tokens=3)
        assert 200 == answer.status_code

    statistics = server.statistics()
    assert (0, 20) == (statistics.requests.aborted, statistics.requests.length_limited)
    assert 0 == server.service.counts.num_gone


def test_a_client_that_takes_nothing_holds_up_nobody_and_is_closed_at_last() -> None:
    settings = ServerSettings((MODEL,), waits=Waits(write_s=1.0))
    with served(Setting(settings)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        # Chunks with log probabilities are long: the buffers on the way are full soon.
        body = {**NUMBERS, "stream": True, "max_tokens": 900, "logprobs": True,
                "top_logprobs": 20, "n": 4}  # fmt: skip
        sent = json.dumps(body).encode()
        slow.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            % len(sent)
            + sent
        )
        server.wait_until(lambda: server.service.admission.num_active == 1)
        answers = [ask(server, max_tokens=20).status_code for _ in range(3)]
        server.wait_until(lambda: server.service.counts.num_gone == 1)
        server.check_nothing_held()
        slow.close()

    assert [200] * 3 == answers


def test_a_silent_stream_is_kept_alive() -> None:
    settings = ServerSettings((MODEL,), waits=Waits(keep_alive_s=0.05))
    with served(Setting(settings)) as server:
        server.pace.hold()
        connection = connect(server, stream=True, max_tokens=2)
        read = b""
        while read.count(b": keep-alive\n\n") < 2:
            read += connection.recv(4096)
        server.pace.release()
        while b"[DONE]" not in read:
            read += connection.recv(4096)
        connection.close()

    assert b'"finish_reason":"length"' in read


def test_many_clients_are_answered_side_by_side(server: Served) -> None:
    texts: list[str] = []

    def talk(idx: int) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"say number {idx}"}]}
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        texts.append(answer.json()["choices"][0]["message"]["content"])

    threads = [threading.Thread(target=talk, args=(idx,)) for idx in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(f"number {idx}" for idx in range(16)) == sorted(texts)


def test_an_engine_that_fails_is_told_in_the_stream_and_in_the_answer(server: Served) -> None:
    server.pace.failure = RuntimeError("a broken kernel")
    whole = ask(server, max_tokens=3)
    streamed = ask(server, max_tokens=3, stream=True)
    server.pace.failure = None

    assert (500, "server_error") == (whole.status_code, whole.json()["error"]["type"])
    last = streamed.text.strip().split("\n\n")[-1]
    assert "server_error" == json.loads(last.removeprefix("data: "))["error"]["type"]
    assert 200 == ask(server, max_tokens=3).status_code
