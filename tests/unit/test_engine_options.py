"""The options of how the engine computes: settings, and what is told of those that cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from flowforge.engine.config import EngineConfig


@click.command
@options.engine
@options.as_json
def compute(*, engine: EngineConfig, as_json: bool) -> None:
    click.echo(f"{engine.kv_dtype} {engine.kernel_rows} {engine.dtype} {as_json}")


def test_options_become_settings() -> None:
    words = ["--kv-dtype", "float8", "--kernel-rows", "0", "--dtype", "int8"]

    assert "float8 0 int8 False\n" == CliRunner().invoke(compute, words).output
    assert "auto None auto False\n" == CliRunner().invoke(compute, []).output


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--device", "tpu"], "EN230"),
        (["--threads", "100000"], "EN230"),
        (["--kv-dtype", "float8", "--deterministic"], "EN234"),
        (["--kernel-rows", "3", "--deterministic"], "EN234"),
    ],
)
def test_settings_that_cannot_be_are_told_with_their_code(words: list[str], code: str) -> None:
    result = CliRunner().invoke(compute, words)

    assert int(ExitCode.ENGINE) == result.exit_code
    assert f"error[{code}]: " in result.stderr
    assert "" == result.stdout
    assert f'"code": "{code}"' in CliRunner().invoke(compute, [*words, "--json"]).stdout


@pytest.mark.parametrize("word", ["nan", "inf", "1e999"])
def test_what_is_no_finite_number_is_a_wrong_use(word: str) -> None:
    result = CliRunner().invoke(compute, ["--host-cache", word])

    assert 2 == result.exit_code
    assert f"'{word}' is not a finite number" in result.output
