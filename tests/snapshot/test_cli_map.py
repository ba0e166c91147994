"""`flowforge map`: every row once, in order, whatever ends it in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowforge.cli.app import app
from flowforge.cli.row_files import RowFile, RowResult

WORKFLOW = """\
flowforge: 1
name: label
inputs: { text: string }
steps:
  label:
    system: You label texts.
    user: "${ inputs.text }"
    gen: {}
  loud:
    set: "${ label | upper }"
outputs: { loud: "${ loud }", text: "${ inputs.text }" }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLOWFORGE_JOURNAL", str(tmp_path / "runs.db"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "label.yaml").write_text(WORKFLOW, encoding="utf-8")
    script({"label": "fine"})
    return tmp_path


def script(answers: dict[str, Any]) -> None:
    Path("script.json").write_text(json.dumps(answers), encoding="utf-8")


def rows(num: int) -> None:
    lines = (json.dumps({"text": f"row {idx}"}) for idx in range(num))
    Path("rows.jsonl").write_text("\n".join(lines), encoding="utf-8")


def arguments(*more: str) -> list[str]:
    return ["map", "label.yaml", "rows.jsonl", "-o", "out.jsonl", "--backend", "script:script.json", *more]  # fmt: skip  # noqa: E501


def flowforge(*more: str) -> Result:
    return CliRunner().invoke(app, arguments(*more))


def written() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]


def test_a_line_ends_at_a_line_feed_and_nowhere_else() -> None:
    """JSON may hold Unicode's other line ends as they are; a cut batch reads them back."""
    text = "one\u2028two\u0085three\u2029four"
    Path("rows.jsonl").write_text(
        json.dumps({"text": text}, ensure_ascii=False) + "\r\n", encoding="utf-8"
    )
    assert 0 == (first := flowforge()).exit_code, first.stderr
    assert 0 == (again := flowforge()).exit_code, again.stderr

    lines = Path("out.jsonl").read_text(encoding="utf-8").split("\n")
    assert [text, ""] == [line and json.loads(line)["outputs"]["text"] for line in lines]


def test_rows_are_the_same_however_many_are_open_at_a_time() -> None:
    rows(12)

    assert 0 == flowforge("--open-runs", "auto").exit_code

    assert [f"row {idx}" for idx in range(12)] == [one["outputs"]["text"] for one in written()]


def test_files_may_begin_with_a_byte_order_mark() -> None:
    Path("rows.jsonl").write_text('{"text": "row"}\n', encoding="utf-8-sig")
    Path("script.json").write_text('{"label": "fine"}', encoding="utf-8-sig")

    assert 0 == flowforge().exit_code
    assert ["FINE"] == [row["outputs"]["loud"] for row in written()]


@pytest.mark.parametrize("output", ["none/out.jsonl", "."])
def test_an_output_that_cannot_be_written_is_told_before_a_row_runs(output: str) -> None:
    rows(2)
    script({})
    result = flowforge("-o", output)

    assert 2 == result.exit_code
    assert f"error[WF541]: the output {output!r} cannot be written: " in result.stderr


def test_an_output_that_cannot_be_written_any_more_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(self: RowFile, result: RowResult) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RowFile, "_line", is_full)
    rows(2)
    result = flowforge()

    assert 2 == result.exit_code
    assert (
        "error[WF541]: the output 'out.jsonl' cannot be written: No space left on device"
        in result.stderr
    )


def test_every_row_is_a_line_in_order() -> None:
    rows(25)
    result = flowforge("-j", "4")

    assert 0 == result.exit_code, result.stderr
    assert [(idx, "done", f"row {idx}") for idx in range(25)] == [
        (line["row"], line["status"], line["outputs"]["text"]) for line in written()
    ]
    assert "25 of 25 rows\n" in result.stderr


def test_the_same_command_again_runs_nothing() -> None:
    rows(5)
    flowforge()
    before = Path("out.jsonl").read_bytes()
    script({})

    assert 0 == flowforge().exit_code
    assert before == Path("out.jsonl").read_bytes()


def test_failed_rows_are_listed_and_can_be_tried_again() -> None:
    rows(3)
    script({"label": ["fine", "fine"]})
    result = flowforge("-j", "1")
    assert 1 == result.exit_code
    reason = "label: the script's answers for 'label' are used up [WF522]"
    assert f"row 2 failed: {reason}\n" in result.stderr
    assert ["done", "done", "failed"] == [line["status"] for line in written()]

    script({"label": "fine"})
    assert 1 == flowforge().exit_code
    assert 0 == flowforge("--retry-failed").exit_code
    assert ["done"] * 3 == [line["status"] for line in written()]


def test_rows_that_do_not_fit_are_all_told_before_any_runs() -> None:
    Path("rows.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n[1]\n', encoding="utf-8")
    result = flowforge()

    assert 2 == result.exit_code
    assert "error[WF540]: 2 rows cannot be run" in result.stderr
    assert "rows.jsonl:2: unknown input 'txt'" in result.stderr
    assert "rows.jsonl:3: expected a JSON object" in result.stderr
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize("num_bytes", [1, 20])
def test_a_line_that_was_cut_is_written_again(num_bytes: int) -> None:
    """REL-005, REL-006, REL-008: also one that lacks only its line end."""
    rows(4)
    flowforge()
    whole = Path("out.jsonl").read_bytes()
    Path("out.jsonl").write_bytes(whole[:-num_bytes])

    assert 0 == flowforge().exit_code
    assert whole == Path("out.jsonl").read_bytes()


def test_damage_in_the_middle_is_refused_with_its_line() -> None:
    """REL-007."""
    rows(3)
    flowforge()
    lines = Path("out.jsonl").read_text().splitlines()
    damaged = "\n".join([lines[0], lines[1][:9], lines[2], ""])
    Path("out.jsonl").write_text(damaged, encoding="utf-8")
    result = flowforge()

    assert 2 == result.exit_code
    assert "error[WF541]" in result.stderr
    assert "line 2 is damaged" in result.stderr
    assert damaged == Path("out.jsonl").read_text()


def test_the_output_of_other_rows_is_left_alone() -> None:
    rows(3)
    flowforge()
    before = Path("out.jsonl").read_bytes()
    rows(4)

    assert "line 1 is of another batch" in flowforge().stderr
    assert before == Path("out.jsonl").read_bytes()


def test_a_batch_that_was_killed_has_every_row_once(folder: Path) -> None:
    rows(40)
    flowforge()
    expected = written()
    Path("out.jsonl").unlink()
    environment = {**os.environ, "FLOWFORGE_JOURNAL": str(folder / "other.db")}
    # The first rows are on the disk, and not all of them in the output.
    for failpoint in ("after-commit:9", "before-commit:6", ""):
        process = subprocess.run(
            [sys.executable, "-m", "flowforge", *arguments()],
            cwd=folder,
            env={**environment, **({"FLOWFORGE_FAILPOINT": failpoint} if failpoint else {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (-9 if failpoint else 0) == process.returncode, process.stderr

    assert expected == written()
