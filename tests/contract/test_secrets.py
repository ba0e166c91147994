"""Secrets reach the tools that they are for, and nothing else: no file, event, error or screen."""

from __future__ import annotations

import base64
import copy
import json
import sqlite3
import sys
import traceback
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from click.testing import CliRunner, Result

import flowforge as ff
from flowforge.cli.app import app
from flowforge.errors import ToolError, WorkflowError
from flowforge.language.loader import load_text
from flowforge.secrets.masks import mask_of
from flowforge.secrets.secret_box import SecretBox
from flowforge.testing import script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CANARY = 'c4n"ary/V alue-57e1\\x'
FORMS = (
    CANARY,
    json.dumps(CANARY)[1:-1],
    repr(CANARY)[1:-1],
    quote(CANARY, safe=""),
    base64.b64encode(CANARY.encode()).decode().rstrip("="),
    CANARY[:12],
)
TOOLS = """
import base64
import json
from pathlib import Path
from urllib.parse import quote

import flowforge as ff


def _keep(value):
    with Path(__file__).with_name("received").open("a") as file:
        file.write(value + "\\n")


def fetch(url: str, headers: dict[str, str]) -> dict[str, object]:
    _keep(headers["Authorization"])
    key = url.partition("key=")[2]
    return {"asked": url, "sent": [json.dumps(headers), base64.b64encode(key.encode())]}


def refuse(key: str) -> str:
    _keep(key)
    raise ValueError(f"key {key} is refused: {quote(key, safe='')}")


def look(what: str) -> str:
    key = ff.secret("API_KEY").reveal()
    _keep(key)
    return f"{what} with {key}"
"""
WORKFLOW = """
flowforge: 1
name: canary
secrets: [API_KEY]
tools:
  fetch: { python: "canary_tools:fetch", effect: read }
  refuse: { python: "canary_tools:refuse", effect: read }
  look: { python: "canary_tools:look", effect: read }
steps:
  got:
    call: fetch
    with:
      url: "https://x/?key=${ secrets.API_KEY }"
      headers: { Authorization: "Bearer ${ secrets.API_KEY }" }
    cache: true
  refused:
    call: refuse
    with: { key: "${ secrets.API_KEY }" }
    retry: { attempts: 2, backoff: 1ms }
    catch: { as: error, else: "${ error.message }" }
  agent:
    user: "What is ${ got } and ${ refused }?"
    gen: { tools: [look] }
  last:
    after: [agent]
    call: refuse
    with: { key: "${ secrets.API_KEY }" }
outputs: { agent: "${ agent }", got: "${ got }" }
"""
CALL = {"name": "look", "arguments": {"what": "the sky"}}
ANSWERS = {"agent": {"turns": [{"calls": [CALL]}, "it is blue"]}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workflow whose tools do with their secret what they should not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOWFORGE_JOURNAL", str(tmp_path / "runs.db"))
    monkeypatch.setenv("API_KEY", CANARY)
    (tmp_path / "canary_tools.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "canary.yaml").write_text(WORKFLOW, encoding="utf-8")
    (tmp_path / "script.json").write_text(json.dumps(ANSWERS), encoding="utf-8")
    yield tmp_path
    sys.modules.pop("canary_tools", None)


def flowforge(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run(*options: str) -> Result:
    return flowforge("run", "canary.yaml", "--backend", "script:script.json", *options)


def require_absent(text: str) -> None:
    for form in FORMS:
        assert form not in text


def test_no_artefact_of_a_run_has_the_value_that_its_tools_were_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WF-062."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    told = [run("--traceback")]
    with closing(sqlite3.connect(folder / "runs.db")) as other:
        # Who reads keeps the write-ahead log, which would go with its last user.
        assert other.execute("select count(*) from works").fetchone()
        told += [run("--json", "--traceback"), run("--explain-cache")]
        told += [flowforge("resume", "--traceback"), flowforge("runs"), flowforge("ps")]
        for name in [line.split()[0] for line in told[-2].stdout.splitlines() if line.strip()][-3:]:
            for step in ([], ["got"], ["refused"], ["agent"], ["last"]):
                told.append(flowforge("show", name, *step))
            told += [flowforge("export", name, "-f", form) for form in ("json", "markdown")]
        files = [path for path in folder.iterdir() if path.is_file()]
        assert {"runs.db", "runs.db-wal"} <= {path.name for path in files}
        bytes_told = b"".join(
            path.read_bytes() for path in files if path.name not in {"received", "canary_tools.py"}
        )

    assert {CANARY, f"Bearer {CANARY}"} == set((folder / "received").read_text().splitlines())
    assert 1 == told[0].exit_code
    assert "***" in told[0].stderr + told[1].stdout
    for result in told:
        require_absent(result.output)
    require_absent(bytes_told.decode("utf-8", "replace"))
    for form in FORMS:
        assert form.encode() not in bytes_told


def test_a_secret_that_is_not_set_is_said_before_anything_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("API_KEY")

    result = run()

    assert 2 == result.exit_code
    assert "error[WF310]: secret 'API_KEY' not set in the environment" in result.stderr
    assert not (folder / "received").exists()
    assert "no run" in flowforge("runs").output or not flowforge("runs").stdout.strip()


def test_an_input_that_is_a_secret_is_refused_before_it_is_written_down(folder: Path) -> None:
    text = WORKFLOW.replace("secrets:", "inputs: { topic: string }\nsecrets:")
    (folder / "canary.yaml").write_text(text, encoding="utf-8")

    result = run("-i", f"topic=about {CANARY}")

    assert 2 == result.exit_code
    assert "error[WF313]: input 'topic'" in result.stderr
    require_absent(result.output)


HEAD = """flowforge: 1
name: x
secrets: [API_KEY]
tools: { f: { python: "m:f" } }
steps:
  a: STEP
outputs: { a: "${ a }" }
"""


@pytest.mark.parametrize(
    ("step", "code", "help"),
    [
        ('{ set: "${ secrets.API_KEY }" }', "WF141", "'with' of a call"),
        ('{ user: "Hi ${ secrets.API_KEY }", gen: {} }', "WF141", "'with' of a call"),
        ('{ ask: "Is it ${ secrets.API_KEY }?" }', "WF141", "'with' of a call"),
        (
            """{ call: f, with: { x: 1 }, when: "${ secrets.API_KEY == 'a' }" }""",
            "WF141",
            "'with' of a call",
        ),
        ('{ call: f, with: { x: "${ secrets.API_KEY | upper }" } }', "WF141", "alone"),
        ('{ call: f, with: { x: "${ secrets }" } }', "WF141", "alone"),
        ('{ call: f, with: { x: "${ secrets.API_KYE }" } }', "WF203", "did you mean 'API_KEY'"),
    ],
)
def test_a_secret_stands_in_arguments_of_calls_and_nowhere_else(
    step: str, code: str, help: str
) -> None:
    found = load_text(HEAD.replace("STEP", step)).diagnostics

    assert [code] == [one.code for one in found]
    assert help in (found[0].help or "")


def test_a_secret_that_no_file_declares_says_how_to() -> None:
    text = HEAD.replace("secrets: [API_KEY]\n", "")
    step = '{ call: f, with: { x: "${ secrets.API_KEY }" } }'

    found = load_text(text.replace("STEP", step)).diagnostics

    assert ["WF203"] == [one.code for one in found]
    assert "declare it: 'secrets: [API_KEY]'" == found[0].help


def test_a_text_that_looks_like_a_secret_is_never_opened() -> None:
    box = SecretBox({"API_KEY": CANARY})

    assert "${ secrets.API_KEY }" == box.opened("${ secrets.API_KEY }")
    assert [f"k {CANARY}!"] == box.opened(["k " + ff.secret("API_KEY") + "!"])
    assert "Secret('${ secrets.API_KEY }')" == repr(copy.deepcopy(ff.secret("API_KEY")))


def test_short_lines_of_a_secret_are_not_masked_on_their_own() -> None:
    """WF-064."""
    mask = mask_of(['{\n  "key": "s3cr3t-VALUE"\n}'])

    assert mask is not None
    assert '{ "def": 1 }' == mask('{ "def": 1 }')
    assert 'line: *** "def"' == mask('line: "key": "s3cr3t-VALUE" "def"')
    assert mask_of(["{\n}"]) is None
    with pytest.raises(WorkflowError, match="fewer than 4 characters"):
        SecretBox.read(["BRACES"], {"BRACES": "{ }"})


@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
def test_a_secret_is_masked_as_a_part_of_what_is_encoded(before: str) -> None:
    mask = mask_of([CANARY])
    assert mask is not None

    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        shown = mask(f"Basic {encode(f'{before}{CANARY}@host'.encode()).decode()}")
        assert "***" in shown
        assert len(before) + len("@host") + 12 > len(shown.removeprefix("Basic ")), shown
    assert "https://host/***?k=***" == mask(f"https://host/{quote(CANARY)}?k={quote(CANARY)}")


def test_an_error_whose_cause_shows_a_secret_loses_the_cause() -> None:
    box = SecretBox({"API_KEY": CANARY})
    error, harmless = ToolError("TL201", f"raised {CANARY}"), ToolError("TL201", "raised")
    error.__cause__, harmless.__cause__ = ValueError(CANARY), ValueError("nothing")

    for one in (error, harmless):
        box.mask_error(one)

    assert "error[TL201]: raised ***" == str(error)
    require_absent("".join(traceback.format_exception(error)))
    assert "ValueError: nothing" in "".join(traceback.format_exception(harmless))


RECEIVED: list[str] = []


@ff.tool(effect="read")
def fetch(headers: dict[str, str]) -> str:
    """Say what was sent."""
    RECEIVED.append(headers["Authorization"])
    return f"sent {headers}"


async def tell(run: ff.Run, number: int) -> str:
    del run
    return f"{number}: {ff.secret('API_KEY').reveal()}"


@ff.flow(secrets=["API_KEY"])
async def careless(run: ff.Run, fails: bool = False) -> str:
    key = ff.secret("API_KEY")
    sent = await run.call(fetch, {"Authorization": "Bearer " + key})
    async with run.chat() as chat:
        chat.user("It is {key}, {sent}.", key=key, sent=sent)
        await chat.gen(name="answer")
    await run.map(tell, [1])
    if fails:
        raise ValueError(f"refused {key.reveal()}")
    return key.reveal()


async def test_a_flow_tells_no_secret_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", CANARY)
    backend = script({"answer": "yes"})
    RECEIVED.clear()

    async with ff.start(careless, backend=backend) as handle:
        events = [event async for event in handle.events()]
        assert CANARY == await handle.result()
    with pytest.raises(ff.RunFailedError) as failed:
        await ff.run(careless, backend=backend, fails=True)

    assert [f"Bearer {CANARY}"] * 2 == RECEIVED
    require_absent(repr(events) + repr(backend.prompts))
    require_absent(str(failed.value) + repr(failed.value.__cause__))
    assert "***" in repr(events)


async def test_what_a_flow_does_not_declare_it_cannot_reveal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTHER_KEY", CANARY)

    @ff.flow
    async def curious(run: ff.Run) -> str:
        del run
        return ff.secret("OTHER_KEY").reveal()

    assert CANARY == ff.secret("OTHER_KEY").reveal()
    with pytest.raises(ff.RunFailedError, match="'OTHER_KEY' is not declared"):
        await ff.run(curious, backend=script({}))
    monkeypatch.delenv("API_KEY", raising=False)
    with pytest.raises(WorkflowError, match="'API_KEY' not set"):
        await ff.run(careless, backend=script({}))
