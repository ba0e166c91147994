"""`--log-file` and its companions: a line for each event, with its run and its step."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from flowforge.cli.app import app
from flowforge.runtime.events import Event, RunStarted, StepFailed, StepFinished, StepStarted
from flowforge.telemetry.run_log import RunLog

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = """\
flowforge: 1
name: t
inputs: { topic: string }
steps:
  each:
    for: "word in ['a', 'b']"
    do:
      draft: { user: "Say ${ word } of ${ inputs.topic }", gen: {} }
  broken: { set: "${ each[7] }", catch: { as: error, else: "${ error.message }" } }
outputs: { each: "${ each }" }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of its own, a workflow and a script."""
    monkeypatch.setenv("FLOWFORGE_JOURNAL", str(tmp_path / "runs.db"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.yaml").write_text(WORKFLOW, encoding="utf-8")
    (tmp_path / "script.json").write_text(json.dumps({"*": "well said"}), encoding="utf-8")
    return tmp_path


def flowforge(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run(*options: str) -> Result:
    script = ("--backend", "script:script.json", "-i", "topic=whispers")
    return flowforge("run", "t.yaml", *script, *options)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_every_line_names_its_run_and_step_and_tells_no_text(folder: Path) -> None:
    result = run("--log-file", "run.log", "--log-format", "json", "--log-level", "debug")

    assert 0 == result.exit_code, result.output
    lines = lines_of(folder / "run.log")
    (name,) = {line["run"] for line in lines}
    assert f"run {name}\n" in result.stderr
    assert "run_started" == lines[0]["event"]
    assert ("run_finished", "info") == (lines[-1]["event"], lines[-1]["level"])
    assert lines[-1]["generated_tokens"] == 4
    draft = [line for line in lines if line.get("step") == "each[1]/draft"]
    assert ["step_started", "step_finished"] == [line["event"] for line in draft]
    assert {"duration_s", "generated_tokens", "time"} <= set(draft[-1])
    text = (folder / "run.log").read_text(encoding="utf-8")
    assert all(said not in text for said in ("whispers", "well said"))
    assert 0o600 == (folder / "run.log").stat().st_mode & 0o777


def test_values_are_logged_where_that_is_asked_for(folder: Path) -> None:
    run("--log-file", "run.log", "--log-values")

    text = (folder / "run.log").read_text(encoding="utf-8")
    assert 'inputs={"topic": "whispers"}' in text
    assert 'value="well said"' in text


def test_a_level_leaves_out_what_is_less_important(folder: Path) -> None:
    run("--log-file", "run.log", "--log-level", "warning")

    (line,) = (folder / "run.log").read_text(encoding="utf-8").splitlines()
    assert " WARNING step_caught run=" in line
    assert " step=broken code=WF402 message=" in line


def test_without_a_file_lines_go_to_stderr_in_the_place_of_progress() -> None:
    result = run("--log-format", "text")

    assert "INFO    step_finished" in result.stderr
    assert "each[0]/draft: started" not in result.stderr


def test_a_resumed_run_logs_what_it_does_itself(folder: Path) -> None:
    (folder / "script.json").write_text(json.dumps({"each[0]*": "well said"}), encoding="utf-8")
    assert 1 == run("--log-file", "first.log", "--log-format", "json").exit_code
    (folder / "script.json").write_text(json.dumps({"*": "well said"}), encoding="utf-8")

    result = flowforge("resume", "--log-file", "second.log", "--log-format", "json")

    assert 0 == result.exit_code, result.output
    first, second = lines_of(folder / "first.log"), lines_of(folder / "second.log")
    assert "run_failed" == first[-1]["event"]
    assert ["each[1]/draft [WF521]"] == first[-1]["failures"]
    events = [line["event"] for line in second]
    assert "run_resumed" in events
    assert "run_started" not in events


def test_rows_of_a_batch_log_into_one_file(folder: Path) -> None:
    rows = "".join(json.dumps({"topic": f"t{idx}"}) + "\n" for idx in range(3))
    (folder / "rows.jsonl").write_text(rows, encoding="utf-8")

    words = ("map", "t.yaml", "rows.jsonl", "-o", "out.jsonl", "--backend", "script:script.json")
    result = flowforge(*words, "--log-file", "map.log", "--log-format", "json")

    assert 0 == result.exit_code, result.output
    lines = lines_of(folder / "map.log")
    assert 3 == len({line["run"] for line in lines})
    assert 3 == sum(line["event"] == "run_finished" for line in lines)


def test_a_log_that_cannot_be_written_is_said_before_the_run_begins(folder: Path) -> None:
    result = run("--log-file", str(folder / "none" / "run.log"))

    assert 4 == result.exit_code
    assert "error[EN803]" in result.stderr
    assert "" == flowforge("runs").stdout


def test_a_log_leaves_the_handlers_of_the_standard_library_alone() -> None:
    before = [*logging.root.handlers]

    run("--log-file", "run.log")

    assert before == logging.root.handlers
    assert [] == logging.getLogger("flowforge").handlers


def test_control_codes_and_line_breaks_of_a_message_stay_in_its_line() -> None:
    lines: list[str] = []
    log = RunLog(lines.append, lambda: 0.0)

    log.take(Event(0, 0.0, RunStarted("w", {"a": 1}, 7)), None)
    log.take(Event(1, 0.5, StepStarted("a b", "call")), None)
    log.take(Event(2, 2.0, StepFailed("a b", "TL201", "one\n\x1b[31mtwo")), None)
    log.take(Event(3, 3.0, StepFinished("c", "value")), None)

    start = "1970-01-01T00:00:00.000Z"
    told = r'step="a b" code=TL201 message="one\n\u001b[31mtwo" duration_s=1.5'
    assert [
        f"{start} INFO    run_started workflow=w seed=7",
        f"{start} ERROR   step_failed {told}",
        f"{start} INFO    step_finished step=c",
    ] == lines
