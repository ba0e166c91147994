"""What a user is told of inputs, options and files that cannot be used."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from flowforge.cli.app import app
from flowforge.cli.download import DownloadProgress, download_bar
from flowforge.engine.config import EngineConfig
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = """\
flowforge: 1
name: t
inputs: { q: string, n: { type: number, default: 1 } }
steps: { a: { user: "${ inputs.q } ${ inputs.n }", gen: {} } }
outputs: { a: "${ a }" }
"""


@pytest.fixture(name="workflow")
def workflow_file(tmp_path: Path) -> Path:
    file = tmp_path / "workflow.yaml"
    file.write_text(WORKFLOW, encoding="utf-8")
    return file


@pytest.fixture(name="script")
def script_option(tmp_path: Path) -> str:
    file = tmp_path / "script.json"
    file.write_text('{"a": "answer"}', encoding="utf-8")
    return f"script:{file}"


def flowforge(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"q": "a", "n": Infinity}', "error[WF303]: input 'n' expects number: inf is no number"),
        ('{"q": "a", "n": 1e400}', "error[WF303]: input 'n' expects number: inf is no number"),
        ('{"q": "\\ud800"}', "error[WF303]: input 'q' expects string: U+D800 at position 0"),
        ('{"q": "a", "q": "b"}', "cannot be read: key 'q' is there twice\n"),
        ("{", "cannot be read: expecting property name"),
        ("[" * 100_000, "cannot be read: it is nested too deep\n"),
    ],
)
def test_a_file_of_inputs_that_cannot_be_used_is_a_usage_error(
    content: str, told: str, tmp_path: Path, workflow: Path, script: str
) -> None:
    file = tmp_path / "inputs.json"
    file.write_text(content, encoding="utf-8")

    result = flowforge("run", workflow, "--inputs", file, "--backend", script)

    assert 2 == result.exit_code
    assert told in result.stderr


@pytest.mark.parametrize("option", ["--inputs", "--answers"])
def test_a_file_that_is_missing_is_named_once(
    option: str, tmp_path: Path, workflow: Path, script: str
) -> None:
    file = tmp_path / "none.json"

    result = flowforge("run", workflow, "-i", "q=a", option, file, "--backend", script)

    assert 2 == result.exit_code
    assert 1 == result.stderr.count("none.json")
    assert "cannot be read: no such file or directory\n" in result.stderr


def test_files_of_inputs_and_answers_may_begin_with_a_byte_order_mark(
    tmp_path: Path, workflow: Path, script: str
) -> None:
    inputs, answers = tmp_path / "inputs.json", tmp_path / "answers.yaml"
    inputs.write_text('{"q": "a"}', encoding="utf-8-sig")
    answers.write_text("ask: yes\n", encoding="utf-8-sig")
    options: list[str | Path] = [
        "--inputs",
        inputs,
        "--answers",
        answers,
        "--backend",
        script,
        "--no-journal",
    ]

    assert 0 == flowforge("run", workflow, *options).exit_code


def test_bytes_that_are_no_utf_8_are_a_usage_error(workflow: Path, script: str) -> None:
    result = flowforge("run", workflow, "-i", "q=\udcff\udcfe", "--backend", script, "--json")

    assert 2 == result.exit_code
    assert "input 'q' expects string: byte 0xff at position 0" in result.stderr
    assert "WF303" == json.loads(result.stdout)["code"]


def test_an_input_given_twice_is_a_usage_error(workflow: Path, script: str) -> None:
    result = flowforge("run", workflow, "-i", "q=1", "-i", "q=2", "--backend", script)

    assert 2 == result.exit_code
    assert "error[WF520]: input 'q' is given by two -i, '1' and '2'" in result.stderr


def inputs_of(result: Result) -> dict[str, object]:
    """What the run was started with, from `--json`."""
    inputs: dict[str, object] = json.loads(result.stdout.splitlines()[0])["inputs"]
    return inputs


def test_an_at_sign_takes_the_text_of_a_file_as_it_is(
    tmp_path: Path, workflow: Path, script: str
) -> None:
    text, number = tmp_path / "text.txt", tmp_path / "number.json"
    text.write_bytes("${ x } é\r\n\n".encode())
    number.write_text("3", encoding="utf-8")

    files = ("-i", f"q=@{text}", "-i", f"n=@{number}")
    result = flowforge("run", workflow, *files, "--backend", script, "--json")

    assert {"q": "${ x } é\r\n\n", "n": 3} == inputs_of(result)


def test_two_at_signs_are_one_of_the_text(workflow: Path, script: str) -> None:
    result = flowforge("run", workflow, "-i", "q=@@ada @", "--backend", script, "--json")

    assert "@ada @" == inputs_of(result)["q"]


@pytest.mark.parametrize(
    ("content", "told"), [(None, "no such file or directory"), (b"\xff", "'utf-8' codec can't")]
)
def test_a_text_that_cannot_be_read_is_a_usage_error(
    content: bytes | None, told: str, tmp_path: Path, workflow: Path, script: str
) -> None:
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)

    result = flowforge("run", workflow, "-i", f"q=@{file}", "--backend", script)

    assert 2 == result.exit_code
    assert f"error[WF520]: the text of input 'q' cannot be read from {str(file)!r}: {told}" in (
        result.stderr
    )


@pytest.mark.parametrize("given", [("-i", "q=@/dev/zero"), ("--inputs", "/dev/zero")])
def test_what_has_no_end_is_not_read_for_ever(
    given: tuple[str, str], workflow: Path, script: str
) -> None:
    result = flowforge("run", workflow, *given, "--backend", script)

    assert 2 == result.exit_code
    assert "cannot be read" in result.stderr
    assert "it has more than 256 MB\n" in result.stderr


def test_a_directory_is_no_workflow_file(tmp_path: Path) -> None:
    result = flowforge("check", tmp_path)

    assert 3 == result.exit_code
    assert "is a directory" in result.stdout
    assert "help: give a workflow file in that directory" in result.stdout


def test_the_help_for_a_control_character_escapes_that_character(tmp_path: Path) -> None:
    file = tmp_path / "nul.yaml"
    file.write_bytes(b'flowforge: 1\nname: "a\x00b"\n')

    assert 'in a quoted text: "\\x00"' in flowforge("check", file).stdout


def test_reading_an_input_where_none_is_declared_says_how_to_declare_it(tmp_path: Path) -> None:
    file = tmp_path / "none.yaml"
    file.write_text('flowforge: 1\nname: t\nsteps: { a: { user: "${ inputs.q }", gen: {} } }\n')

    assert "declare it: 'inputs: { q: string }'" in flowforge("check", file).stdout


def test_engine_options_reach_the_engine(workflow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[EngineConfig | None] = []

    def open_engines(model: str | None, *, config: EngineConfig, **others: object) -> None:
        del model, others
        seen.append(config)
        raise EngineError("EN110", "far enough")

    monkeypatch.setattr("flowforge.backends.engines.open_engines", open_engines)
    options = ["--threads", "2", "--kv-memory", "5", "--context-len", "4096"]

    result = flowforge("run", workflow, "-i", "q=a", *options)

    assert 4 == result.exit_code
    assert [EngineConfig(kv_bytes=5_000_000, num_threads=2, context_len=4096)] == seen


@pytest.mark.parametrize("options", [["--threads", "0"], ["--kv-pages", "9", "--kv-memory", "5"]])
def test_engine_options_that_cannot_be_used_are_usage_errors(
    options: list[str], workflow: Path, script: str
) -> None:
    result = flowforge("run", workflow, "-i", "q=a", "--backend", script, *options)

    assert 2 == result.exit_code
    assert options[0] in result.stderr


def test_a_download_of_unknown_size_shows_no_share(capsys: pytest.CaptureFixture[str]) -> None:
    with DownloadProgress(is_quiet=False) as progress:
        progress("asking", 0, None)
        progress("fetching", 50, 100_000_000)

    assert "asking\nfetching: 0 % of 100 MB\n" == capsys.readouterr().err


def test_an_unknown_command_is_told_with_the_near_miss() -> None:
    result = CliRunner().invoke(app, ["chek", "x.yaml"])

    assert 2 == result.exit_code
    assert "No such command 'chek'. Did you mean 'check'?" in result.stderr


@pytest.mark.parametrize("command", ["check", "graph", "plan"])
@pytest.mark.parametrize("target", ["flows.py", "flows.py:main"])
def test_a_python_flow_is_told_what_it_can_be_used_for(command: str, target: str) -> None:
    result = CliRunner().invoke(app, [command, target])

    assert 2 == result.exit_code
    assert f"error[WF528]: '{target}' is a flow in Python" in result.stderr
    assert "help: " in result.stderr


def test_a_download_of_unknown_size_has_a_bar_that_only_moves() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with download_bar(console) as bar:
        task = bar.add_task("org/model", total=None)
        bar.update(task, completed=5_000_000, total=None)

        with console.capture() as capture:
            console.print(bar.get_renderable())

    assert "org/model" in capture.get()
    assert "5.0/? MB" in capture.get()


def test_all_inputs_that_are_wrong_are_told_in_one_go(workflow: Path) -> None:
    of_form = flowforge("run", str(workflow), "-i", "nothing", "-i", "q=@none.txt", "-i", "n=1")
    of_type = flowforge("run", str(workflow), "-i", "n=much", "-i", "a=1", "--json")

    assert [2, 2] == [of_form.exit_code, of_type.exit_code]
    assert 2 == of_form.stderr.count("error[WF520]: ")
    assert ["WF302", "WF301", "WF303"] == [
        json.loads(line)["code"] for line in of_type.stdout.splitlines()
    ]
    assert 3 == of_type.stderr.count("error[WF30")
