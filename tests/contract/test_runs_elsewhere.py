"""Runs whose models are on servers: from the file and flowforge.toml to events and reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from chat_server import JSON, Reply, calls_reply, error_reply, text_reply
from click.testing import CliRunner
from socket_chat_server import serving

import flowforge as ff
from flowforge.cli.app import app
from flowforge.configuration import read_configuration
from flowforge.errors import WorkflowError
from flowforge.language.loader import load_text

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from click.testing import Result
    from socket_chat_server import SocketChatServer

WORKFLOW = """
flowforge: 1
name: elsewhere
models:
  big: { url: "URL", model: org/Big, dialect: vllm, api_key: BIG_KEY, max_wait: 1ms }
tools:
  look: { python: "tools:look", effect: read }
steps:
  topics:
    system: Be brief.
    user: Name two.
    model: remote/big
    gen: { json: { type: array, items: { type: string } } }
  each:
    for: topic in topics
    do:
      one:
        from: topics
        user: "Explore ${ topic }."
        gen: { max_tokens: 20 }
  seen:
    user: Look.
    model: remote/big
    retry: { attempts: 2, backoff: 1ms }
    gen: { tools: [look] }
outputs: { each: "${ each }", seen: "${ seen }" }
"""


def _answer(body: JSON) -> Reply:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return text_reply("seen ", last["content"])
    if last["content"] == "Name two.":
        return text_reply('["tides", ', '"sand"]')
    if last["content"] == "Look.":
        return calls_reply(("look", '{"where": "up"}'))
    return text_reply("about ", last["content"])


@pytest.fixture
def server() -> Generator[SocketChatServer]:
    with serving(_answer) as one:
        yield one


def _folder(tmp_path: Path, workflow: str, configuration: str = "") -> Path:
    (tmp_path / "tools.py").write_text(
        "def look(where: str) -> str:\n    '''Look.'''\n    return f'sky {where}'\n"
    )
    (tmp_path / "w.yaml").write_text(workflow)
    if configuration:
        (tmp_path / "flowforge.toml").write_text(configuration)
    return tmp_path / "w.yaml"


def _flowforge(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def _events(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_workflow_runs_on_a_server_alone(
    tmp_path: Path, server: SocketChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIG_KEY", "hush-hush")
    # No engine is opened: there is no such model.
    monkeypatch.setattr("flowforge.backends.engines.open_engines", None)
    file = _folder(tmp_path, WORKFLOW.replace("URL", server.url))

    result = _flowforge("run", file, "--json", "--journal", tmp_path / "j.db")

    assert 0 == result.exit_code, result.output
    end = _events(result)[-1]
    assert {
        "each": ["about Explore tides.", "about Explore sand."],
        "seen": "seen sky up",
    } == end["outputs"]
    assert {"Bearer hush-hush"} == set(server.keys)
    assert "hush-hush" not in result.output
    assert b"hush-hush" not in b"".join(
        path.read_bytes() for path in tmp_path.iterdir() if path.is_file()
    )
    # Five answers, each of 20 prompt tokens, of which 16 were cached; nobody knows distinct ones.
    accounting = end["accounting"]
    assert (20, 80, 35, None) == (
        accounting["prefilled_tokens"],
        accounting["reused_tokens"],
        accounting["generated_tokens"],
        accounting["unique_prompt_tokens"],
    )
    branches = [body["messages"] for body in server.bodies if len(body["messages"]) == 4]
    assert branches[0][:3] == branches[1][:3]


def test_an_answer_without_its_form_is_asked_for_again_by_the_step_s_retry(
    tmp_path: Path,
) -> None:
    replies = iter([text_reply("no list"), text_reply('["a"]')])
    workflow = """
flowforge: 1
name: again
models: { m: { url: "URL", dialect: vllm } }
steps:
  a:
    user: List.
    model: remote/m
    retry: { attempts: 2, backoff: 1ms }
    gen: { json: { type: array, items: { type: string } } }
outputs: { a: "${ a }" }
"""
    with serving(lambda _: next(replies)) as server:
        file = _folder(tmp_path, workflow.replace("URL", server.url))
        result = _flowforge("run", file, "--json", "--no-journal")

    events = _events(result)
    assert {"a": ["a"]} == events[-1]["outputs"]
    assert ["EN406"] == [one["code"] for one in events if one["event"] == "step_retried"]


def test_waits_and_routes_are_told_kept_and_reported(tmp_path: Path) -> None:
    busy = iter([error_reply(429, "slow down"), text_reply("hello there")])
    workflow = """
flowforge: 1
name: routed
steps:
  a: { user: Hello., model: route/main, gen: { max_tokens: 9 } }
  b: { after: a, user: Hello., model: route/main, tags: [far], gen: { max_tokens: 9 } }
outputs: { a: "${ a }", b: "${ b }" }
"""
    with (
        serving(lambda _: next(busy)) as near,
        serving(lambda _: error_reply(400, "no")) as far,
        serving(lambda _: text_reply("hello friend")) as new,
    ):
        urls = {"near": near.url, "far": far.url, "new": new.url}
        tables = "".join(
            f'[models.{name}]\nurl = "{url}"\nmax_wait = "1ms"\n' for name, url in urls.items()
        )
        tables += """
[routes.main]
rules = [{ tag = "far", to = "remote/far" }]
weights = { "remote/near" = 1 }
fallback = ["remote/new"]
shadow = { to = "remote/new", wait = "30s" }
"""
        file = _folder(tmp_path, workflow, tables)
        journal = tmp_path / "j.db"
        result = _flowforge("run", file, "--json", "--journal", journal)

    assert 0 == result.exit_code, result.output
    events = _events(result)
    assert {"a": "hello there", "b": "hello friend"} == events[-1]["outputs"]
    assert [("a", "remote/near"), ("b", "remote/far"), ("b", "remote/new")] == [
        (one["path"], one["model"]) for one in events if one["event"] == "step_routed"
    ]
    assert [("a", "EN403", 1)] == [
        (one["path"], one["code"], one["attempt"])
        for one in events
        if one["event"] == "request_delayed"
    ]
    assert [("a", 0.5), ("b", 1.0)] == sorted(
        (one["path"], one["similarity"]) for one in events if one["event"] == "shadow_ended"
    )

    told = _flowforge("report", "routes", "--journal", journal, "--json")
    figures = {(one["model"], one["shadow"]): one for one in json.loads(told.stdout)}
    assert (1, 1, 1) == tuple(
        figures["remote/near", False][name] for name in ("requests", "answered", "delayed")
    )
    assert {"EN405": 1} == figures["remote/far", False]["errors"]
    assert (1, 1.0) == (
        figures["remote/new", False]["answered"],
        figures["remote/new", False]["checks_passed"],
    )
    assert 0.75 == figures["remote/new", True]["likeness"]
    table = _flowforge("report", "routes", "--journal", journal)
    assert "remote/new (shadow)" in table.stdout
    again = _flowforge("run", file, "--json", "--journal", journal, "--help")
    assert 0 == again.exit_code


def test_a_run_that_was_routed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    is_up: list[bool] = []
    workflow = """
flowforge: 1
name: resumed
steps:
  a: { user: One., model: route/main, gen: { max_tokens: 9 } }
  b: { from: a, user: Two., gen: { max_tokens: 9 } }
outputs: { b: "${ b }" }
"""

    def answer(body: JSON) -> Reply:
        if body["messages"][-1]["content"] == "Two." and not is_up:
            return error_reply(400, "not yet")
        return text_reply(f"answer {len(body['messages'])}")

    with serving(answer) as server:
        configuration = f'[models.m]\nurl = "{server.url}"\n[routes.main]\n'
        configuration += 'weights = { "remote/m" = 1 }\n'
        file = _folder(tmp_path, workflow, configuration)
        failed = _flowforge("run", file, "--json", "--journal", tmp_path / "j.db")
        is_up.append(True)
        resumed = _flowforge("resume", "--json", "--journal", tmp_path / "j.db")

    assert (4, 0) == (failed.exit_code, resumed.exit_code), resumed.output
    assert {"b": "answer 3"} == _events(resumed)[-1]["outputs"]
    assert ["One.", "Two.", "Two."] == [body["messages"][-1]["content"] for body in server.bodies]
    assert {"role": "assistant", "content": "answer 1"} == server.bodies[-1]["messages"][1]


def test_a_flow_asks_a_server_too(
    tmp_path: Path, server: SocketChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder(tmp_path, "", f'[models.big]\nurl = "{server.url}"\n')
    monkeypatch.chdir(tmp_path)

    @ff.flow
    async def ask(run: ff.Run) -> list[str]:
        async with run.chat() as chat:
            chat.user("Name two.")
            first = await chat.gen()
            chat.user("More.")
            return [first, await chat.gen()]

    texts = ff.run_sync(ask, model="remote/big")

    assert ['["tides", "sand"]', "about More."] == texts


@pytest.mark.parametrize(
    ("configuration", "code", "words"),
    [
        ("[models.m", "WF537", "cannot be read"),
        ("[modles.m]\n", "WF538", "did you mean 'models'?"),
        ("[models.m]\n", "WF538", "has no 'url'"),
        ("[models.m]\nurl = 'http://u:p@h/v1'\n", "WF538", "'url' must be"),
        ("models = 5\n", "WF538", "must be tables"),
        ("[models]\nm = 5\n", "WF538", "must be a table"),
        ("[routes.r]\nweights = { 'remote/m' = 1 }\n", "WF538", "sends to 'remote/m'"),
    ],
)
def test_a_broken_configuration_is_told_of(
    tmp_path: Path, configuration: str, code: str, words: str
) -> None:
    (tmp_path / "flowforge.toml").write_text(configuration)

    with pytest.raises(WorkflowError) as raised:
        read_configuration(tmp_path / "flowforge.toml")

    assert code == raised.value.code
    assert words in raised.value.message


@pytest.mark.parametrize(
    ("configuration", "line"),
    [
        ("# models\n\n[modles.m]\n", 3),
        ("[routes]\n\n[models.m] # no url\n", 3),
        ("[models.m]\nurl = 'http://h/v1'\nattemts = 1\n", 3),
        ("[models.m]\nmodel = '''\nurl\n[models.n]\n'''\nurl = 5\n", 6),
        ("[models]\nn = { url = 'http://h/v1' }\nm = { url = 5 }\n", 3),
        ("[models]\r\nm = 5\r\n", 2),
        ('\n[ "routes" . r ]\nweights = { "remote/m" = 1 }\n', 2),
    ],
)
def test_a_wrong_configuration_is_told_of_at_its_line(
    tmp_path: Path, configuration: str, line: int
) -> None:
    (tmp_path / "flowforge.toml").write_bytes(configuration.encode())

    with pytest.raises(WorkflowError) as raised:
        read_configuration(tmp_path / "flowforge.toml")

    assert "WF538" == raised.value.code
    assert raised.value.location is not None
    assert line == raised.value.location.line, raised.value.message


def test_check_and_plan_know_the_models_of_servers(tmp_path: Path) -> None:
    workflow = """
flowforge: 1
name: known
steps: { a: { user: Hi., model: remote/bg, gen: { max_tokens: 5 } } }
outputs: { a: "${ a }" }
"""
    configuration = '[models.big]\nurl = "http://models.test/v1"\n'
    file = _folder(tmp_path, workflow, configuration)

    wrong = _flowforge("check", file)
    file.write_text(workflow.replace("remote/bg", "remote/big"))
    right = _flowforge("check", file)

    assert (3, 0) == (wrong.exit_code, right.exit_code)
    assert "WF145" in wrong.output
    assert "did you mean 'remote/big'?" in wrong.output


def test_what_a_machine_says_of_a_model_goes_before_what_the_file_says(
    tmp_path: Path, server: SocketChatServer
) -> None:
    workflow = """
flowforge: 1
name: moved
models: { m: { url: "http://nowhere.test/v1" } }
steps: { a: { user: Hi., model: remote/m, gen: { max_tokens: 5 } } }
outputs: { a: "${ a }" }
"""
    file = _folder(tmp_path, workflow, f'[models.m]\nurl = "{server.url}"\n')

    result = _flowforge("run", file, "--json", "--no-journal")

    assert {"a": "about Hi."} == _events(result)[-1]["outputs"]


def test_tags_do_not_change_what_a_step_is() -> None:
    from flowforge.runtime.definitions import definitions_of

    plain = "flowforge: 1\nname: t\nsteps: { a: { user: x, gen: { max_tokens: 5 } } }\n"
    tagged = plain.replace("user: x,", "user: x, tags: [y],")

    one, other = (load_text(text).program for text in (plain, tagged))

    assert one is not None
    assert other is not None
    assert definitions_of(one) == definitions_of(other)


def test_a_key_that_a_server_echoes_is_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIG_KEY", "hush-hush")
    workflow = """
flowforge: 1
name: echoed
models: { m: { url: "URL", api_key: BIG_KEY } }
steps: { a: { user: Hi., model: remote/m, gen: { max_tokens: 5 } } }
outputs: { a: "${ a }" }
"""
    with serving(lambda _: error_reply(401, "no such key: hush-hush")) as server:
        file = _folder(tmp_path, workflow.replace("URL", server.url))
        result = _flowforge("run", file, "--journal", tmp_path / "j.db")

    assert 4 == result.exit_code
    assert "no such key: ***" in result.stderr
    assert "hush-hush" not in result.output
    assert b"hush-hush" not in b"".join(
        path.read_bytes() for path in tmp_path.iterdir() if path.is_file()
    )
