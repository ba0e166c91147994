"""`flowforge run --tool-format`: which names there are, and that runs keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.journals import kept_options
from flowforge.cli.options import TOOL_FORMAT_NAMES
from flowforge.cli.run import run
from flowforge.grammars.tool_formats import TOOL_FORMATS

if TYPE_CHECKING:
    from pathlib import Path


def test_the_help_names_every_format() -> None:
    assert sorted(TOOL_FORMATS) == list(TOOL_FORMAT_NAMES)
    # Lines are broken at hyphens, too.
    told = "".join(CliRunner().invoke(run, ["--help"]).output.split())
    assert ",".join(sorted(TOOL_FORMATS)) in told


def test_an_unknown_format_is_refused_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("flowforge: 1\nname: t\nsteps: { a: { set: 1 } }\n")

    result = CliRunner().invoke(run, [str(file), "--tool-format", "hermess", "--no-journal"])

    assert result.exit_code == ExitCode.ENGINE
    assert "unknown tool format 'hermess'" in result.output


def test_a_run_that_goes_on_keeps_its_format() -> None:
    assert kept_options("engine", None, {}, None, "glm")["tool_format"] == "glm"
