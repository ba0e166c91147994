"""`flowforge run` and `check` as a user meets them, on scripted answers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from gone_reader import run_for_a_reader_that_left

from flowforge.cli.app import app

ANALYST = Path(__file__).parents[2] / "workflows" / "analyst.yaml"
ANSWERS = {
    "angles": '["Expenses", "Distance", "Lawfulness"]',
    "explore[*]/draft": "it matters",
    "report": "All of it matters.",
}
PROGRESS = """\
run N
angles: started
angles: done, 3 tokens
explore: started
explore[0]/draft: started
explore[1]/draft: started
explore[2]/draft: started
explore[0]/draft: done, 2 tokens
explore[1]/draft: done, 2 tokens
explore[2]/draft: done, 2 tokens
explore: done, 3 items
report: started
report: done, 4 tokens
prefilled N tokens (N unique), reused N, generated 13, pages at peak 4 of 4, N s
"""


@pytest.fixture(name="script")
def script_option(tmp_path: Path) -> str:
    return script_of(tmp_path, ANSWERS)


def script_of(tmp_path: Path, answers: object) -> str:
    file = tmp_path / "script.json"
    file.write_text(json.dumps(answers), encoding="utf-8")
    return f"script:{file}"


def flowforge(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_result_goes_to_stdout_and_all_else_to_stderr(script: str) -> None:
    result = flowforge("run", ANALYST, "-i", "topic=electric bicycles", "--backend", script)

    assert 0 == result.exit_code
    assert "All of it matters.\n" == result.stdout
    accounting = re.compile(r"(^run |prefilled |\(|reused )[\w-]+|[\d.]+(?= s$)", re.MULTILINE)
    shown = accounting.sub(lambda match: f"{match[1] or ''}N", result.stderr)
    assert PROGRESS == shown


def test_prefilled_and_unique_tokens_are_printed_side_by_side_and_equal(script: str) -> None:
    result = flowforge("run", ANALYST, "-i", "topic=bicycles", "--backend", script)

    counts = re.search(r"prefilled ([\d,]+) tokens \(([\d,]+) unique\)", result.stderr)
    assert counts is not None
    assert counts[1] == counts[2]


def test_quiet_prints_the_result_alone(script: str) -> None:
    result = flowforge("run", ANALYST, "-i", "topic=bicycles", "--backend", script, "--quiet")

    assert ("All of it matters.\n", "") == (result.stdout, result.stderr)


def test_json_prints_every_event_as_a_line_and_the_terminal_one_last(script: str) -> None:
    result = flowforge("run", ANALYST, "-i", "topic=bicycles", "--backend", script, "--json")

    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert list(range(len(events))) == [event["seq"] for event in events]
    assert "run_started" == events[0]["event"]
    assert "run_finished" == events[-1]["event"]
    assert {"report": "All of it matters."} == events[-1]["outputs"]
    assert "" == result.stderr


def test_inputs_come_from_a_file_and_options_win(tmp_path: Path, script: str) -> None:
    file = tmp_path / "inputs.json"
    file.write_text('{"topic": "trains", "audience": "pupils"}', encoding="utf-8")

    result = flowforge(
        "run", ANALYST, "--inputs", file, "-i", "topic=ships", "--backend", script, "--json"
    )

    inputs = json.loads(result.stdout.splitlines()[0])["inputs"]
    assert {"topic": "ships", "audience": "pupils"} == inputs


def test_an_unknown_input_is_a_usage_error(script: str) -> None:
    result = flowforge("run", ANALYST, "-i", "topik=bicycles", "--backend", script)

    assert 2 == result.exit_code
    assert "" == result.stdout
    assert "error[WF302]" in result.stderr
    assert "topic" in result.stderr


@pytest.mark.parametrize("pair", ["topic", "=bicycles"])
def test_an_input_that_is_no_pair_is_a_usage_error(pair: str, script: str) -> None:
    result = flowforge("run", ANALYST, "-i", pair, "--backend", script)

    assert 2 == result.exit_code
    assert f"error[WF520]: expected -i NAME=VALUE, got {pair!r}" in result.stderr


@pytest.mark.parametrize("text", ["[1]", "{", '{"topic": \xff'])
def test_an_inputs_file_that_holds_no_object_is_a_usage_error(
    text: str, tmp_path: Path, script: str
) -> None:
    file = tmp_path / "inputs.json"
    file.write_bytes(text.encode("latin-1"))

    result = flowforge("run", ANALYST, "--inputs", file, "--backend", script)

    assert 2 == result.exit_code
    assert "error[WF520]: the inputs file" in result.stderr


def test_a_workflow_with_errors_is_not_run(tmp_path: Path, script: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(ANALYST.read_text().replace("from: angles", "from: angels", 1))

    result = flowforge("run", file, "-i", "topic=bicycles", "--backend", script)

    assert 3 == result.exit_code
    assert "" == result.stdout
    assert "error[WF104]" in result.stderr
    assert "did you mean 'angles'?" in result.stderr
    assert "1 error" in result.stderr


def test_a_missing_workflow_file_is_told(tmp_path: Path, script: str) -> None:
    result = flowforge("run", tmp_path / "none.yaml", "--backend", script)

    assert 3 == result.exit_code
    assert "error[WF001]" in result.stderr


def test_a_failed_step_is_told_with_its_path(tmp_path: Path) -> None:
    answers = {"angles": '["Expenses", "Distance", "Lawfulness"]', "explore[*]/draft": "it matters"}

    result = flowforge(
        "run", ANALYST, "-i", "topic=bicycles", "--backend", script_of(tmp_path, answers)
    )

    assert 1 == result.exit_code
    assert "" == result.stdout
    assert "error[WF521]: report: the script has no answer for step 'report'\n" in result.stderr
    assert "Traceback" not in result.stderr


def test_json_ends_with_the_failures(tmp_path: Path) -> None:
    result = flowforge(
        "run", ANALYST, "-i", "topic=bicycles", "--backend", script_of(tmp_path, {}), "--json"
    )

    last = json.loads(result.stdout.splitlines()[-1])
    assert 1 == result.exit_code
    assert ("run_failed", "angles") == (last["event"], last["failures"][0]["path"])


def test_json_tells_an_error_before_the_run_on_stdout_too(script: str) -> None:
    result = flowforge("run", ANALYST, "-i", "topik=x", "--backend", script, "--json")

    assert "WF302" == json.loads(result.stdout)["code"]


def test_an_answer_that_is_not_valid_under_the_schema_fails_the_step(tmp_path: Path) -> None:
    answers = {**ANSWERS, "angles": '["only one"]'}

    result = flowforge(
        "run", ANALYST, "-i", "topic=bicycles", "--backend", script_of(tmp_path, answers)
    )

    assert 1 == result.exit_code
    assert re.search(r"error\[\w+\]: angles: ", result.stderr)


def test_a_script_says_values_as_json(tmp_path: Path) -> None:
    angles = ["Total cost", "Range in winter", "Law and insurance"]
    # A list is one answer after the other, so an answer that is a list stands in one.
    answers = {"angles": [angles], "explore[*]/draft": "notes", "report": "done"}

    result = flowforge(
        "run", ANALYST, "-i", "topic=bicycles", "--backend", script_of(tmp_path, answers)
    )

    assert (0, "done\n") == (result.exit_code, result.stdout)


@pytest.mark.parametrize(
    "answers", [["a"], {"angles": {"calls": 3}}, {"angles": ["a", {"calls": [{"arguments": {}}]}]}]
)
def test_a_script_of_the_wrong_shape_is_a_usage_error(answers: object, tmp_path: Path) -> None:
    result = flowforge("run", ANALYST, "--backend", script_of(tmp_path, answers))

    assert 2 == result.exit_code
    assert "error[WF525]" in result.stderr


def test_an_unknown_backend_is_a_usage_error() -> None:
    result = flowforge("run", ANALYST, "--backend", "cloud")

    assert 2 == result.exit_code
    assert "error[WF524]: unknown backend 'cloud'" in result.stderr


def test_check_counts_problems_and_exits_by_them(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(ANALYST.read_text().replace("from: angles", "from: angels"))

    good, bad = flowforge("check", ANALYST), flowforge("check", file)

    assert (0, "1 file checked: no problems\n") == (good.exit_code, good.stdout)
    assert 3 == bad.exit_code
    assert bad.stdout.endswith("1 file checked: 2 errors; 'flowforge explain WF104' says more\n")


def test_check_prints_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(ANALYST.read_text().replace("from: angles", "from: angels"))

    result = flowforge("check", file, "--json")

    codes = [json.loads(line)["code"] for line in result.stdout.splitlines()]
    assert ["WF104", "WF104"] == codes


def test_strict_makes_warnings_fail(tmp_path: Path) -> None:
    file = tmp_path / "warned.yaml"
    file.write_text(ANALYST.read_text().replace("Topic: ${ inputs.topic }", "Topic: {{ topic }}"))

    assert 0 == flowforge("check", file).exit_code
    assert 3 == flowforge("check", file, "--strict").exit_code


# -- signals and pipes, in a process of their own -------------------------------------------------

HANGING = """
import sys
from contextlib import asynccontextmanager
import anyio
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.cli import main, session

@asynccontextmanager
async def open_backend(*args):
    yield ScriptBackend({"angles": ScriptedAnswer("never", gate=anyio.Event())})

session.open_backend = open_backend
"""
STUBBORN = (
    HANGING
    + """
class Stubborn:
    async def wait(self):
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()

@asynccontextmanager
async def open_stubborn(*args):
    yield ScriptBackend({"angles": ScriptedAnswer("never", gate=Stubborn())})

session.open_backend = open_stubborn
"""
)


def hanging_run(*options: str, script: str = HANGING) -> subprocess.Popen[str]:
    """A process whose first step never ends; it has started when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-c", script + "main()", "run", str(ANALYST), "-i", "topic=x", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stream = process.stdout if "--json" in options else process.stderr
    assert stream is not None
    for line in stream:
        if "step_started" in line or "angles: started" in line:
            return process
    raise AssertionError("the run ended before its first step")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_run(number: signal.Signals, code: int) -> None:
    process = hanging_run()

    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)

    assert code == process.returncode
    assert "" == stdout
    assert "angles: cancelled\nthe run was cancelled\n" in stderr
    assert "Traceback" not in stderr


def test_a_second_signal_ends_the_process_when_a_step_will_not_stop() -> None:
    process = hanging_run(script=STUBBORN)
    assert process.stderr is not None

    process.send_signal(signal.SIGINT)
    assert "cancelling; once more ends the process at once\n" == process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)

    assert 130 == process.returncode


def test_a_cancelled_run_ends_its_json_lines_with_the_terminal_event() -> None:
    process = hanging_run("--json")

    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=20)

    events = [json.loads(line)["event"] for line in stdout.splitlines()]
    assert ["step_cancelled", "run_cancelled"] == events


def test_a_reader_that_goes_away_ends_the_run_without_a_traceback(script: str) -> None:
    options = ["-i", "topic=x", "--backend", script, "--json"]

    assert (141, "") == run_for_a_reader_that_left("run", str(ANALYST), *options)
