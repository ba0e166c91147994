"""`--tool-format` of `run` and `map`: which names there are, and that runs keep it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.journals import kept_options, open_journal
from flowforge.cli.map import map_
from flowforge.cli.options import TOOL_FORMAT_NAMES
from flowforge.cli.run import run
from flowforge.grammars.tool_formats import TOOL_FORMATS

if TYPE_CHECKING:
    from click import Command


@pytest.mark.parametrize("command", [run, map_], ids=["run", "map"])
def test_the_help_names_every_format(command: Command) -> None:
    assert sorted(TOOL_FORMATS) == list(TOOL_FORMAT_NAMES)
    # Lines are broken at hyphens, too.
    told = "".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert ",".join(sorted(TOOL_FORMATS)) in told


def test_an_unknown_format_is_refused_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("flowforge: 1\nname: t\nsteps: { a: { set: 1 } }\n")

    result = CliRunner().invoke(run, [str(file), "--tool-format", "hermess", "--no-journal"])

    assert result.exit_code == ExitCode.ENGINE
    assert "unknown tool format 'hermess'" in result.output


def test_a_batch_refuses_an_unknown_format_and_keeps_a_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    journal = tmp_path / "runs.db"
    Path("t.yaml").write_text("flowforge: 1\nname: t\nsteps: { a: { set: 1 } }\n")
    Path("rows.jsonl").write_text("{}\n")
    Path("script.json").write_text("{}")
    given = ["t.yaml", "rows.jsonl", "-o", "out.jsonl", "--backend", "script:script.json"]
    given += ["--journal", str(journal), "--tool-format"]

    refused = CliRunner().invoke(map_, [*given, "hermess"])
    assert refused.exit_code == ExitCode.ENGINE
    assert "unknown tool format 'hermess'" in refused.output
    assert not Path("out.jsonl").exists()

    assert CliRunner().invoke(map_, [*given, "glm"]).exit_code == ExitCode.DONE
    with open_journal(journal) as opened:
        (summary,) = opened.runs()
        assert opened.run(summary.run_id).begun.options["tool_format"] == "glm"


def test_a_run_that_goes_on_keeps_its_format() -> None:
    assert kept_options("engine", None, {}, None, "glm")["tool_format"] == "glm"
