"""`flowforge serve` as a process, on the default model: known answers, and an end in order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

pytestmark = pytest.mark.model

MODEL = "SmolLM2-135M-Instruct"
_WAIT_S = 90.0
APPROVAL = """\
flowforge: 1
name: gate
steps:
  decision: { ask: "Go on?", choices: [yes, no] }
outputs: { decision: "${ decision }" }
"""


class Process:
    """A server in a process of its own."""

    def __init__(self, folder: Path, model: Path) -> None:
        (folder / "gate.yaml").write_text(APPROVAL)
        command = [sys.executable, "-m", "flowforge", "serve", "--port", "0", "--model", str(model)]
        command += ["--name", MODEL, "--workflows", str(folder), "--drain", "1"]
        self.journal = str(folder / "runs.db")
        command += ["--journal", self.journal, "--threads", "1", "--kv-pages", "128"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._up = threading.Event()
        self.url = ""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        assert self._up.wait(_WAIT_S) and self.url, self.lines

    def end(self, number: signal.Signals) -> int:
        """Signal it and wait for its exit code."""
        self._process.send_signal(number)
        code = self._process.wait(_WAIT_S)
        self._reading.join()
        return code

    def kill(self) -> None:
        """Nothing is left of it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reading.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)
            found = re.search(r"serving .* at (http://\S+)/v1", line)
            if found is not None:
                self.url = found[1]
                self._up.set()
        self._up.set()


@pytest.fixture(scope="module")
def process(
    tmp_path_factory: pytest.TempPathFactory, default_model_dir: Path
) -> Generator[Process]:
    one = Process(tmp_path_factory.mktemp("served"), default_model_dir)
    try:
        yield one
    finally:
        one.kill()


@pytest.fixture(scope="module")
def client(process: Process) -> Generator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture
def case(cases: Callable[[str], list[dict[str, Any]]]) -> Callable[[str], dict[str, Any]]:
    def find(name: str) -> dict[str, Any]:
        bank = [*cases("openai_api"), *cases("tokens")]
        return next(one for one in bank if one["id"] == name)

    return find


def _ids(process: Process, text: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    told: list[int] = httpx2.post(f"{process.url}/tokenize", json=body, timeout=60).json()["tokens"]
    return told


def test_a_greedy_answer_is_the_models_own(
    process: Process, client: openai.OpenAI, case: Callable[[str], dict[str, Any]]
) -> None:
    golden = case("TK-040")
    answer = client.chat.completions.create(
        model=MODEL, messages=golden["input"]["messages"], temperature=0, max_completion_tokens=5
    )
    expected = case("API-012")["expected"]

    assert expected["ids"] == _ids(process, answer.choices[0].message.content or "")
    assert expected["finish_reason"] == answer.choices[0].finish_reason
    assert answer.usage is not None
    assert expected["completion_tokens"] == answer.usage.completion_tokens
    assert golden["expected"]["prompt_tokens"] == answer.usage.prompt_tokens


def test_usage_counts_what_was_asked_and_written(
    process: Process, client: openai.OpenAI, case: Callable[[str], dict[str, Any]]
) -> None:
    expected = case("API-042")["expected"]
    answer = client.chat.completions.create(
        model=MODEL, messages=case("TK-004")["input"]["messages"], temperature=0, max_tokens=3
    )

    assert answer.usage is not None
    told = answer.usage.model_dump()
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert expected[name] == told[name]
    assert expected["ids"] == _ids(process, answer.choices[0].message.content or "")


@pytest.mark.parametrize("idx", range(3))
def test_a_choice_is_the_one_that_the_model_prefers(
    client: openai.OpenAI, case: Callable[[str], dict[str, Any]], idx: int
) -> None:
    told = case("API-037")
    answer = client.chat.completions.create(
        model=MODEL,
        messages=told["input"]["messages"],
        temperature=0,
        logprobs=True,
        extra_body={"structured_outputs": {"choice": told["input"]["choices"][idx]}},
    )

    assert told["expected"]["texts"][idx] == answer.choices[0].message.content
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert len(told["expected"]["ids"][idx]) == len(logprobs.content)
    if idx == 2:
        # Parts of a character: API-028.
        assert [[240, 159], [145], [141]] == [one.bytes for one in logprobs.content]


def test_a_choice_may_be_the_beginning_of_another(
    client: openai.OpenAI, case: Callable[[str], dict[str, Any]]
) -> None:
    told = case("API-038")
    answer = client.completions.create(
        model=MODEL,
        prompt=told["input"]["prompt"],
        temperature=0,
        extra_body={"structured_outputs": {"choice": told["input"]["choices"]}},
    )

    assert told["expected"]["text"] == answer.choices[0].text


def test_ctrl_c_ends_a_server_with_open_streams(process: Process) -> None:
    """The last test of the module: the server is gone after it."""
    begun = httpx2.post(f"{process.url}/v1/workflows/gate/runs", json={}, timeout=60).json()
    texts: list[str] = []
    first = threading.Event()

    def follow() -> None:
        url = f"{process.url}/v1/runs/{begun['id']}/events"
        with httpx2.stream("GET", url, timeout=_WAIT_S) as stream:
            for text in stream.iter_text():
                texts.append(text)
                if "step_asked" in "".join(texts):
                    first.set()

    following = threading.Thread(target=follow)
    following.start()
    assert first.wait(_WAIT_S)
    code = process.end(signal.SIGINT)
    following.join(_WAIT_S)

    assert 130 == code, process.lines
    assert "run_cancelled" in "".join(texts).split("\n\n")[-2]
    endings = [line for line in process.lines if "ending: " in line]
    assert ["may end within 1 s", "can be resumed"] == [
        next(words for words in ("may end within 1 s", "can be resumed") if words in line)
        for line in endings
    ], process.lines
    listed = subprocess.run(
        [sys.executable, "-m", "flowforge", "runs"],
        env={**os.environ, "FLOWFORGE_JOURNAL": process.journal},
        capture_output=True,
        text=True,
        check=True,
    )
    assert begun["id"] in listed.stdout and "cancelled" in listed.stdout
