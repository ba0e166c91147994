"""A step from the cache on the real model: what continues it writes what it wrote before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from flowforge.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = """
flowforge: 1
name: cached
steps:
  one: { user: Name a colour., gen: { max_tokens: 8 }, cache: true }
  two: { from: one, user: Name another one., gen: { max_tokens: 8 } }
outputs: { one: "${ one }", two: "${ two }" }
"""


@pytest.mark.model
def test_a_conversation_from_the_cache_goes_on_as_it_did(
    default_model_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(WORKFLOW)
    words = ["run", str(file), "--model", str(default_model_dir)]
    words += ["--journal", str(tmp_path / "runs.db"), "--threads", "1"]

    first, second = (CliRunner().invoke(app, words) for _ in range(2))
    rounded = CliRunner().invoke(app, [*words, "--kv-dtype", "float8", "--explain-cache"])

    assert first.exit_code == second.exit_code == rounded.exit_code == 0, rounded.output
    assert first.stdout == second.stdout
    assert "1 of 1 cached steps from the cache" in second.stderr
    assert "cache one: miss, model was" in rounded.stderr
    assert ", KV in float8, context 8192" in rounded.stderr
