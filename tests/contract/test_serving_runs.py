"""Workflows over HTTP: runs begun, followed, gone on with, answered, cancelled, kept apart."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from served import Served, Setting, served

import flowforge as ff
from flowforge.errors import EngineError
from flowforge.journal.journal import Journal
from flowforge.journal.writer import JournalWriter
from flowforge.serving.app import make_app
from flowforge.serving.keys import KeyRing
from flowforge.serving.runs import RunPlace, open_runs
from flowforge.serving.server import Server
from flowforge.serving.service import Service
from flowforge.serving.settings import ServerSettings, Waits

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

GATE = """\
flowforge: 1
name: gate
inputs: { topic: string, count: { type: integer, default: 2 } }
steps:
  draft: { user: "say ${ inputs.topic }", gen: }
  decision: { ask: "Put it up?", show: "${ draft }", choices: [yes, no] }
outputs: { text: "${ draft }", decision: "${ decision }" }
"""
TALK = """\
flowforge: 1
name: talk
steps:
  first: { user: say one, gen: }
outputs: { said: "${ first }" }
"""
COUNT = TALK.replace("talk", "count").replace("say one", "count")


ALICE, BOB = "alice-" + "a" * 20, "bob-" + "b" * 20


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("workflows")
    loaded: list[Any] = []
    for name, text in (("gate", GATE), ("talk", TALK), ("count", COUNT)):
        file = folder / f"{name}.yaml"
        file.write_text(text)
        loaded.append(ff.load(file))
    return loaded


@pytest.fixture
def server(programs: list[Any]) -> Generator[Served]:
    with served(Setting(programs=programs, keys=(ALICE, BOB))) as one:
        yield one


def call(server: Served, method: str, path: str, key: str = ALICE, **more: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key}", **more.pop("headers", {})}
    return httpx2.request(method, f"{server.url}{path}", headers=headers, timeout=60, **more)


def begin(server: Served, name: str, **body: Any) -> str:
    begun = call(server, "POST", f"/v1/workflows/{name}/runs", json=body)
    assert 201 == begun.status_code, begun.text
    run_id: str = begun.json()["id"]
    assert f"/v1/runs/{run_id}" == begun.headers["location"]
    return run_id


def parsed(text: str) -> list[dict[str, Any]]:
    """Events with their numbers and names as the protocol has them."""
    events: list[dict[str, Any]] = []
    for block in text.split("\n\n"):
        lines = [line.split(": ", 1) for line in block.split("\n") if line and line[0] != ":"]
        if lines:
            fields = dict(line for line in lines if len(line) == 2)
            told = json.loads(fields["data"])
            assert (str(told["seq"]), told["event"]) == (fields["id"], fields["event"])
            events.append(told)
    return events


def wait_for_question(server: Served, run_id: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def asks() -> bool:
        found[:] = call(server, "GET", f"/v1/runs/{run_id}").json()["questions"]
        return bool(found)

    server.wait_until(asks)
    return found[0]


def test_a_run_is_begun_answered_and_comes_to_its_outputs(server: Served) -> None:
    run_id = begin(server, "gate", inputs={"topic": "owls"}, seed=7)
    question = wait_for_question(server, run_id)
    wrong = call(server, "POST", f"/v1/runs/{run_id}/answers",
                 json={"path": "decision", "text": "maybe"})  # fmt: skip
    nobody = call(server, "POST", f"/v1/runs/{run_id}/answers",
                  json={"path": "nothing", "text": "yes"})  # fmt: skip
    answered = call(server, "POST", f"/v1/runs/{run_id}/answers",
                    json={"path": "decision", "text": "yes"})  # fmt: skip
    events = parsed(call(server, "GET", f"/v1/runs/{run_id}/events").text)
    run = call(server, "GET", f"/v1/runs/{run_id}").json()

    assert ("decision", ["yes", "no"]) == (question["path"], question["choices"])
    assert (400, 400, 200) == (wrong.status_code, nobody.status_code, answered.status_code)
    assert "no_such_question" == nobody.json()["error"]["code"]
    assert ("run_started", "run_finished") == (events[0]["event"], events[-1]["event"])
    assert ("done", "yes") == (run["status"], run["outputs"]["decision"])
    late = call(server, "POST", f"/v1/runs/{run_id}/answers",
                json={"path": "decision", "text": "yes"})  # fmt: skip
    assert 400 == late.status_code


def test_a_stream_of_events_goes_on_behind_the_last_one_seen(server: Served) -> None:
    run_id = begin(server, "talk")
    whole = parsed(call(server, "GET", f"/v1/runs/{run_id}/events").text)
    numbers = [event["seq"] for event in whole]
    last = numbers[len(numbers) // 2]

    rest = parsed(
        call(server, "GET", f"/v1/runs/{run_id}/events", headers={"last-event-id": str(last)}).text
    )
    by_query = parsed(call(server, "GET", f"/v1/runs/{run_id}/events?last_event_id={last}").text)
    nothing = call(
        server, "GET", f"/v1/runs/{run_id}/events", headers={"last-event-id": str(numbers[-1])}
    )
    bad = call(server, "GET", f"/v1/runs/{run_id}/events", headers={"last-event-id": "x"})
    beyond = call(
        server, "GET", f"/v1/runs/{run_id}/events", headers={"last-event-id": str(numbers[-1] + 1)}
    )

    assert sorted(set(numbers)) == numbers
    assert [event for event in whole if event["seq"] > last] == rest == by_query
    assert (200, "") == (nothing.status_code, nothing.text)
    assert (400, 400) == (bad.status_code, beyond.status_code)
    said = beyond.json()["error"]["message"]
    assert f"Last-Event-ID is {numbers[-1] + 1}, and the last event is {numbers[-1]}" in said
    assert "one" == whole[-1]["outputs"]["said"]


def test_who_follows_from_the_start_sees_what_is_seen_later(server: Served) -> None:
    server.pace.hold()
    run_id = begin(server, "talk")
    live: list[str] = []

    def follow() -> None:
        live.append(call(server, "GET", f"/v1/runs/{run_id}/events").text)

    following = threading.Thread(target=follow)
    following.start()
    server.wait_until(lambda: server.service.admission.num_active == 1)
    server.pace.release()
    following.join()

    assert parsed(live[0]) == parsed(call(server, "GET", f"/v1/runs/{run_id}/events").text)


def test_a_run_is_cancelled(server: Served) -> None:
    server.pace.hold()
    run_id = begin(server, "count")
    server.pace.allow(3)
    cancelled = call(server, "POST", f"/v1/runs/{run_id}/cancel")
    server.pace.release()
    events = parsed(call(server, "GET", f"/v1/runs/{run_id}/events").text)

    assert 202 == cancelled.status_code
    assert "run_cancelled" == events[-1]["event"]
    assert "cancelled" == call(server, "GET", f"/v1/runs/{run_id}").json()["status"]
    assert 202 == call(server, "POST", f"/v1/runs/{run_id}/cancel").status_code


def test_a_run_is_of_the_key_that_began_it(server: Served) -> None:
    run_id = begin(server, "talk")

    for method, path in (
        ("GET", f"/v1/runs/{run_id}"),
        ("GET", f"/v1/runs/{run_id}/events"),
        ("POST", f"/v1/runs/{run_id}/cancel"),
    ):
        assert 404 == call(server, method, path, BOB).status_code
    assert [] == call(server, "GET", "/v1/runs", BOB).json()["data"]
    assert [run_id] == [one["id"] for one in call(server, "GET", "/v1/runs").json()["data"]]


@pytest.mark.parametrize(("name", "body", "status", "words"), [
    ("nothing", {}, 404, "gate, talk"),
    ("gate", {}, 400, 'topic\' (string) is missing; give it in the body, under "inputs"'),
    ("gate", {"inputs": {"topic": 3}}, 400, "expects string, got a number"),
    ("gate", {"inputs": {"topic": None}}, 400, "got null: null is not of type 'string'"),
    ("gate", {"inputs": {"topic": {"a": None}}}, 400, '{"a": null} is not of type'),
    ("gate", {"inputs": {"topic": "a", "count": "two"}}, 400, "got the text 'two'"),
    ("gate", {"inputs": {"topic": "a", "x": 1}}, 400, "x"),
    ("gate", {"inputs": []}, 400, "inputs: input should be an object"),
    ("gate", {"inputs": {"topic": "a"}, "seed": -1}, 400, "seed"),
])  # fmt: skip
def test_a_run_that_cannot_begin_is_refused(
    server: Served, name: str, body: dict[str, Any], status: int, words: str
) -> None:
    answer = call(server, "POST", f"/v1/workflows/{name}/runs", json=body)

    assert status == answer.status_code, answer.text
    error = answer.json()["error"]
    assert words in error["message"]
    # How one gives inputs on a command line helps nobody here.
    assert "-i " not in error["message"]
    assert status == 404 or error["param"] in {"inputs", "seed"}
    assert [] == call(server, "GET", "/v1/runs").json()["data"]


def test_workflows_tell_their_inputs(server: Served) -> None:
    listed = call(server, "GET", "/v1/workflows").json()["data"]
    gate = call(server, "GET", "/v1/workflows/gate").json()

    assert ["gate", "talk", "count"] == [one["id"] for one in listed]
    assert gate == listed[0]
    assert ["topic"] == gate["inputs"]["required"]
    assert ("string", 2) == (
        gate["inputs"]["properties"]["topic"]["type"],
        gate["inputs"]["properties"]["count"]["default"],
    )
    assert ["text", "decision"] == gate["outputs"]


# -- the end of the server ------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Generator[Journal]:
    with Journal(tmp_path / "runs.db") as one:
        yield one


def test_the_end_refuses_new_requests_and_waits_for_those_under_way(
    programs: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flowforge.serving.server")
    answers: list[httpx2.Response] = []
    settings = ServerSettings(("spoken",), waits=Waits(drain_s=600))
    with served(Setting(settings, programs=programs)) as server:
        server.pace.hold()
        body = {"model": "spoken", "messages": [{"role": "user", "content": "say bye"}]}
        path = f"{server.url}/v1/chat/completions"
        asking = threading.Thread(
            target=lambda: answers.append(httpx2.post(path, json=body, timeout=60))
        )
        asking.start()
        server.wait_until(lambda: server.service.admission.num_active == 1)
        server.portal.call(server.server.end)
        server.wait_until(lambda: server.service.admission.is_draining)
        refused = httpx2.post(path, json=body, timeout=60)
        health = httpx2.get(f"{server.url}/health", timeout=60)
        server.pace.release()
        asking.join()

    assert (503, "5") == (refused.status_code, refused.headers["retry-after"])
    assert (503, "draining") == (health.status_code, health.json()["status"])
    assert "bye" == answers[0].json()["choices"][0]["message"]["content"]
    assert ["ending: 1 requests and 0 runs may end within 600 s"] == [
        record.getMessage() for record in caplog.records
    ]


def test_what_does_not_end_is_cut_with_a_last_event_and_can_be_resumed(
    programs: list[Any], journal: Journal
) -> None:
    place = RunPlace(JournalWriter(journal), {})
    texts: list[str] = []
    with served(Setting(programs=programs, place=place)) as server:
        server.pace.hold()
        run_id = httpx2.post(f"{server.url}/v1/workflows/count/runs", json={}, timeout=60).json()[
            "id"
        ]
        body = {"model": "spoken", "prompt": "x", "max_tokens": 4000, "stream": True}

        def stream() -> None:
            texts.append(httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60).text)

        def follow() -> None:
            texts.append(httpx2.get(f"{server.url}/v1/runs/{run_id}/events", timeout=60).text)

        threads = [threading.Thread(target=one) for one in (stream, follow)]
        for thread in threads:
            thread.start()
        server.wait_until(lambda: server.service.admission.num_active == 2)
        server.pace.allow(5)
        server.portal.call(server.server.end)
        server.portal.call(server.server.end)
        # What is cut is cut before the next step: there has to be one.
        server.pace.release()
        for thread in threads:
            thread.join()

    ends = sorted("run_cancelled" in text.split("\n\n")[-2] for text in texts)
    assert [False, True] == ends
    cut = next(text for text in texts if "run_cancelled" not in text)
    assert '"code":"unavailable"' in cut.split("\n\n")[-2]
    assert "cancelled" == journal.run(run_id).status


def test_a_request_that_is_cut_at_the_end_is_no_failure_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[httpx2.Response] = []
    with served() as server:
        server.pace.hold()
        body = {"model": "spoken", "prompt": "x", "max_tokens": 4000}
        path = f"{server.url}/v1/completions"
        asking = threading.Thread(
            target=lambda: answers.append(httpx2.post(path, json=body, timeout=60))
        )
        asking.start()
        server.wait_until(lambda: server.service.admission.num_active == 1)
        server.portal.call(server.server.end)
        server.portal.call(server.server.end)
        server.pace.release()
        asking.join()

    assert (503, "5") == (answers[0].status_code, answers[0].headers["retry-after"])
    assert [] == [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_port_that_another_server_has_is_told_as_that() -> None:
    with served() as first:

        async def listen_too() -> None:
            backend = first.service.backend
            async with open_runs((), lambda _: backend) as runs:
                service = Service(backend, first.service.settings, KeyRing())
                second = Server(make_app(service, runs), service, runs)
                second.end()
                second.end()
                try:
                    settings = replace(service.settings, port=second.port)
                    third = Service(backend, settings, KeyRing())
                    Server(make_app(third, runs), third, runs)
                finally:
                    await second.serve()

        with pytest.raises(EngineError) as refused:
            first.portal.call(listen_too)

    assert "EN913" == refused.value.code


def test_many_requests_leave_nothing_in_any_table() -> None:
    with served() as server:
        body = {"model": "spoken", "prompt": "x", "max_tokens": 1}
        with httpx2.Client(timeout=60) as client:
            for _ in range(60):
                assert 200 == client.post(f"{server.url}/v1/completions", json=body).status_code
        server.check_nothing_held()
        assert 0 == server.service.admission.num_active
        assert 60 == server.service.counts.requests["/v1/completions", 200]
        assert 1 == len(server.service.counts.requests)
        assert 0 == server.statistics().scheduler.num_idle


def test_an_engine_that_does_not_answer_is_told_by_health() -> None:
    from flowforge.serving.pulse import Pulse

    with served() as server:
        now_s = [0.0]
        pulse = server.service.pulse = Pulse(server.service.backend.engine, 30.0, lambda: now_s[0])
        server.portal.call(pulse.beat)
        now_s[0] = 29.0
        well = httpx2.get(f"{server.url}/health", timeout=60)
        server.pace.hold()
        body = {"model": "spoken", "prompt": "x", "max_tokens": 1}
        asking = threading.Thread(
            target=lambda: httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60)
        )
        asking.start()
        now_s[0] = 60.0
        ill = httpx2.get(f"{server.url}/health", timeout=60)
        server.pace.release()
        asking.join()
        server.portal.call(pulse.beat)
        again = httpx2.get(f"{server.url}/health", timeout=60)

    assert (200, 503, 200) == (well.status_code, ill.status_code, again.status_code)
    assert "stalled" == ill.json()["status"]
    assert 0.0 == pulse.since_token_s
