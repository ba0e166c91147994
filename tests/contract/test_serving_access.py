"""Who may ask a server, how much, and from where."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest
from served import MODEL, Served, Setting, served

from flowforge import environment
from flowforge.cli.keys import keys as keys_command
from flowforge.errors import EngineError
from flowforge.serving.admission import Admission
from flowforge.serving.failures import RequestError
from flowforge.serving.keys import Key, KeyRing, digest_of, new_key, read_keys, written
from flowforge.serving.settings import Limits, ServerSettings, Waits

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

ALICE, BOB = "alice-" + "a" * 20, "bob-" + "b" * 20
CHAT: Any = {"model": MODEL, "messages": [{"role": "user", "content": "say hi"}]}


@pytest.fixture(scope="module")
def guarded() -> Generator[Served]:
    settings = ServerSettings(
        (MODEL,),
        limits=Limits(max_body_bytes=10_000),
        cors_origins=("https://app.example",),
    )
    with served(Setting(settings, keys=(ALICE, BOB))) as one:
        yield one


def ask(server: Served, **headers: str) -> httpx2.Response:
    return httpx2.post(f"{server.url}/v1/chat/completions", json=CHAT, headers=headers, timeout=60)


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("header", "status"), [
    (None, 401), ("Bearer wrong", 401), (f"bearer {ALICE}", 200), ("Basic x", 401),
    (f"Basic {ALICE}", 401), (f"Bearer {ALICE}", 200), (f"Bearer {ALICE[:-1]}", 401),
    ("Bearer", 401), (ALICE, 401),
])  # fmt: skip
def test_a_key_is_a_bearer_of_the_whole_key(
    guarded: Served, header: str | None, status: int
) -> None:
    answer = ask(guarded, **({} if header is None else {"authorization": header}))

    assert status == answer.status_code
    if status == 401:
        assert "invalid_api_key" == answer.json()["error"]["code"]
        assert "Bearer" == answer.headers["www-authenticate"]
        assert header is None or header.split()[-1] not in answer.text.replace("Bearer KEY", "")


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/runs", "/nothing"])
def test_everything_but_health_and_the_description_wants_a_key(guarded: Served, path: str) -> None:
    assert 401 == httpx2.get(guarded.url + path, timeout=60).status_code


@pytest.mark.parametrize("path", ["/health", "/openapi.json", "/docs"])
def test_health_and_the_description_are_for_anybody(guarded: Served, path: str) -> None:
    assert 200 == httpx2.get(guarded.url + path, timeout=60).status_code


def test_clients_try_again_what_may_pass_and_nothing_else(guarded: Served) -> None:
    """A key that is wrong is asked about once, as is a body that is too large."""
    before = guarded.service.counts.requests.copy()

    with (
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.chat.completions.create(**CHAT)
    large: Any = {**CHAT, "messages": [{"role": "user", "content": "x" * 20_000}]}
    with (
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=ALICE) as client,
        pytest.raises(openai.APIStatusError) as refused,
    ):
        client.chat.completions.create(**large)

    assert 413 == refused.value.status_code
    guarded.wait_until(lambda: sum((guarded.service.counts.requests - before).values()) >= 2)
    assert {401: 1, 413: 1} == {
        status: number for (_, status), number in (guarded.service.counts.requests - before).items()
    }


def test_keys_have_a_cache_each(guarded: Served) -> None:
    def cached_of(key: str, **more: Any) -> int:
        body = {**CHAT, "messages": [{"role": "user", "content": "say " + "p" * 200}], **more}
        answer = httpx2.post(
            f"{guarded.url}/v1/chat/completions",
            json=body,
            headers={"authorization": f"Bearer {key}"},
            timeout=60,
        )
        cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    # What the tests before had in common with it.
    assert cached_of(ALICE) < 20
    assert 0 == cached_of(BOB)
    assert cached_of(ALICE) > 200
    assert 0 == cached_of(ALICE, cache_salt="other")
    assert cached_of(ALICE, cache_salt="other") > 200


def test_no_comparison_of_keys_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared: list[bytes] = []

    def compare(known: bytes, presented: bytes) -> bool:
        compared.append(known)
        return known == presented

    ring = KeyRing(None, (ALICE, BOB))
    monkeypatch.setattr(hmac, "compare_digest", compare)
    numbers: list[int] = []
    for header in (f"Bearer {ALICE}", f"Bearer {BOB}", "Bearer wrong", None, "Basic x"):
        compared.clear()
        ring.find(header)
        numbers.append(len(compared))

    assert [2] * 5 == numbers


def test_a_key_that_is_revoked_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    alice, bob = new_key(), new_key()
    entries = [Key("alice", digest_of(alice)), Key("bob", digest_of(bob), 60, 2)]
    file.write_text(written(entries))
    ring = KeyRing(file)

    assert ["alice", "bob"] == [_name(ring, alice), _name(ring, bob)]
    file.write_text(written(entries[1:]))
    assert [None, "bob"] == [_name(ring, alice), _name(ring, bob)]
    file.write_text("[[keys]]\nname = 3\n")
    assert [None, "bob"] == [_name(ring, alice), _name(ring, bob)]
    assert ring.problem is not None and "keys.0.name" in ring.problem.message


def test_a_file_of_keys_that_goes_is_one_problem_however_often_it_is_looked_for(
    tmp_path: Path,
) -> None:
    file, gone = tmp_path / "keys.toml", tmp_path / "gone"
    alice = new_key()
    file.write_text(written([Key("alice", digest_of(alice))]))
    ring = KeyRing(file)
    file.rename(gone)

    assert "alice" == _name(ring, alice)
    problem = ring.problem
    assert problem is not None and "cannot be read" in problem.message
    assert "alice" == _name(ring, alice)
    assert ring.problem is problem

    gone.rename(file)
    assert "alice" == _name(ring, alice)
    assert ring.problem is None


def _name(ring: KeyRing, key: str) -> str | None:
    found = ring.find(f"Bearer {key}")
    return None if found is None else found.name


def test_the_file_has_no_key_and_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    from click.testing import CliRunner

    file = tmp_path / "keys.toml"
    runner = CliRunner()
    made = runner.invoke(keys_command, ["add", "alice", "-f", str(file), "--concurrent", "3"])
    key = made.stdout.strip()

    assert 0 == made.exit_code, made.output
    assert key not in file.read_text() and len(key) > 40
    assert 0o600 == file.stat().st_mode & 0o777
    assert (Key("alice", digest_of(key), None, 3),) == read_keys(file)
    assert "alice  3 at a time\n" == runner.invoke(keys_command, ["list", "-f", str(file)]).stdout
    assert 2 == runner.invoke(keys_command, ["add", "alice", "-f", str(file)]).exit_code
    for name in ("a b", ""):
        refused = runner.invoke(keys_command, ["add", name, "-f", str(file)])
        assert 2 == refused.exit_code
        assert f"{name!r} is no name of a key" in refused.output
    assert 2 == runner.invoke(keys_command, ["revoke", "bob", "-f", str(file)]).exit_code
    assert 0 == runner.invoke(keys_command, ["revoke", "alice", "-f", str(file)]).exit_code
    assert () == read_keys(file)
    assert [file] == [*tmp_path.iterdir()]


@pytest.mark.parametrize("text", [
    "keys = 3", "[[keys]]\nname = 'a'", "[[keys", "[[keys]]\nname = 'a'\nsha256 = 'zz'",
    f"[[keys]]\nname = 'a'\nsha256 = '{'0' * 64}'\n" * 2,
])  # fmt: skip
def test_a_file_that_has_no_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)

    with pytest.raises(EngineError) as refused:
        KeyRing(file)

    assert "EN911" == refused.value.code


def test_keys_of_the_environment_are_long(tmp_path: Path) -> None:
    ring = KeyRing.from_environment(None, {environment.API_KEYS.name: f" {ALICE} , {BOB}"})

    assert ["env-1", "env-2"] == [_name(ring, ALICE), _name(ring, BOB)]
    assert KeyRing.from_environment(None, {}).is_open
    with pytest.raises(EngineError):
        KeyRing.from_environment(None, {environment.API_KEYS.name: "short"})
    with pytest.raises(EngineError):
        KeyRing(tmp_path / "nowhere")


# -- pages of browsers ----------------------------------------------------------------------------


def test_a_page_may_ask_before_it_has_shown_a_key(guarded: Served) -> None:
    asked = httpx2.options(
        f"{guarded.url}/v1/chat/completions",
        headers={
            "origin": "https://app.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        },
        timeout=60,
    )
    refused = ask(guarded, origin="https://app.example")
    other = httpx2.options(
        f"{guarded.url}/v1/chat/completions",
        headers={"origin": "https://bad.example", "access-control-request-method": "POST"},
        timeout=60,
    )

    assert 200 == asked.status_code
    assert "https://app.example" == asked.headers["access-control-allow-origin"]
    assert "authorization" in asked.headers["access-control-allow-headers"]
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert (401, "https://app.example") == (
        refused.status_code,
        refused.headers["access-control-allow-origin"],
    )
    assert "access-control-allow-origin" not in other.headers


def test_no_page_may_ask_unless_it_is_told_so() -> None:
    with served() as server:
        answer = ask(server, origin="https://app.example")

    assert "access-control-allow-origin" not in answer.headers


# -- bodies ---------------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_refused_before_it_is_read(guarded: Served) -> None:
    status, body = _raw(guarded, b"Content-Length: 20000000\r\n", b"{")

    assert 413 == status
    assert "request_too_large" == json.loads(body)["error"]["code"]


def test_a_body_without_a_length_is_counted_as_it_comes(guarded: Served) -> None:
    chunk = b"3e8\r\n" + b"x" * 1000 + b"\r\n"

    status, _ = _raw(guarded, b"Transfer-Encoding: chunked\r\n", chunk * 11)

    assert 413 == status


def test_a_body_that_does_not_come_gives_its_place_back() -> None:
    settings = ServerSettings((MODEL,), waits=Waits(body_s=0.1))
    with served(Setting(settings)) as server:
        status, body = _raw(server, b"Content-Length: 100\r\n", b"{")
        server.wait_until(lambda: server.service.admission.num_active == 0)

    assert 408 == status
    assert "request_timeout" == json.loads(body)["error"]["code"]


def test_a_head_that_does_not_come_ends_its_connection() -> None:
    settings = ServerSettings((MODEL,), waits=Waits(body_s=0.2))
    with served(Setting(settings)) as server:
        begun = _answer_to(server, b"POST /v1/chat/completions HTTP/1.1\r\nHost: te")
        silent = _answer_to(server, b"")

    assert begun.startswith(b"HTTP/1.1 408 ")
    assert "request_timeout" == json.loads(begun.partition(b"\r\n\r\n")[2])["error"]["code"]
    assert silent == b""


def test_a_connection_that_is_kept_gets_its_time_anew_for_each_head() -> None:
    settings = ServerSettings((MODEL,), waits=Waits(body_s=0.4))
    with served(Setting(settings)) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        for _ in range(3):
            time.sleep(0.2)
            connection.request("GET", "/health")
            with connection.getresponse() as answer:
                assert 200 == answer.status
                answer.read()
        assert connection.sock is not None
        connection.sock.sendall(b"GET /hea")
        late = connection.sock.recv(65536)
        connection.close()

    assert late.startswith(b"HTTP/1.1 408 ")


def test_what_is_no_http_is_refused_as_anything_else() -> None:
    with served() as server:
        answer = _answer_to(server, b"\x16\x03\x01 this is TLS\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert "bad_http" == json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_a_client_that_leaves_within_its_body_is_no_failure(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowforge.access")
    with served() as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
            connection.sendall(head.encode() + b"{")
            server.wait_until(lambda: server.service.admission.num_active == 1)
        server.wait_until(lambda: f"POST {path} " in caplog.text)

    assert [f"127.0.0.1 - POST {path} 499"] == [
        record.getMessage().rpartition(" ")[0] for record in caplog.records
    ]


def _raw(server: Served, head: bytes, body: bytes) -> tuple[int, bytes]:
    """Send some headers and a body as they are; the status and the body of the answer."""
    answer = _answer_to(
        server,
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Authorization: Bearer " + ALICE.encode() + b"\r\n" + head + b"\r\n" + body,
    )
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest


def _answer_to(server: Served, sent: bytes) -> bytes:
    """All that comes until the connection is closed."""
    with _connected(server) as connection:
        connection.sendall(sent)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


def _connected(server: Served) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


# -- limits ---------------------------------------------------------------------------------------


def test_a_rate_fills_evenly() -> None:
    now_s = [0.0]
    admission = Admission(Limits(requests_per_minute=6), lambda: now_s[0])
    key = Key("a", "d")

    def ask_once() -> int:
        try:
            with admission.admitted(key):
                return 0
        except RequestError as error:
            assert 429 == error.failure.status
            return error.failure.retry_after_s

    assert [0] * 6 == [ask_once() for _ in range(6)]
    assert 10 == ask_once()
    now_s[0] = 4.5
    assert 6 == ask_once()
    now_s[0] = 10.0
    assert [0, 10] == [ask_once(), ask_once()]
    # Another key has its own, and its own rate.
    with admission.admitted(Key("b", "e", requests_per_minute=1)):
        pass
    with pytest.raises(RequestError), admission.admitted(Key("b", "e", requests_per_minute=1)):
        pass


def test_requests_at_a_time_are_limited_by_key_and_by_server() -> None:
    admission = Admission(Limits(max_requests=3))
    narrow, wide = Key("a", "d", concurrent=1), Key("b", "e")

    with admission.admitted(narrow), admission.admitted(wide):
        with pytest.raises(RequestError) as of_key, admission.admitted(narrow):
            pass
        with admission.admitted(wide):
            with pytest.raises(RequestError) as of_server, admission.admitted(wide):
                pass
            assert 3 == admission.num_active

    assert (429, 503) == (of_key.value.failure.status, of_server.value.failure.status)
    assert 0 == admission.num_active


def test_a_limit_is_told_with_the_time_to_wait() -> None:
    settings = ServerSettings((MODEL,), limits=Limits(concurrent=1))
    with served(Setting(settings)) as server:
        server.pace.hold()
        first: list[int] = []
        asking = threading.Thread(target=lambda: first.append(ask(server).status_code))
        asking.start()
        server.wait_until(lambda: server.service.admission.num_active == 1)
        refused = ask(server)
        health = httpx2.get(f"{server.url}/health", timeout=60)
        server.pace.release()
        asking.join()

    assert (429, "1") == (refused.status_code, refused.headers["retry-after"])
    assert "rate_limit_exceeded" == refused.json()["error"]["code"]
    assert {"status": "ok", "active": 1} == health.json()
    assert [200] == first


# -- the log --------------------------------------------------------------------------------------


def test_the_log_has_a_line_for_each_request_and_nothing_of_what_was_said(
    guarded: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowforge.access")
    httpx2.post(
        f"{guarded.url}/v1/chat/completions?secret=query",
        json=CHAT,
        headers={"authorization": f"Bearer {ALICE}"},
        timeout=60,
    )
    httpx2.get(
        f"{guarded.url}/v1/models/made-up-path",
        headers={"authorization": f"Bearer {BOB}"},
        timeout=60,
    )
    guarded.wait_until(lambda: len(caplog.records) >= 2)

    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("127.0.0.1 env-1 POST /v1/chat/completions 200 ")
    assert first.endswith("24+3 tokens")
    assert second.startswith("127.0.0.1 env-2 GET /v1/models/{model:path} 404 ")
    assert not any(word in caplog.text for word in ("say hi", "secret", ALICE, "made-up"))
