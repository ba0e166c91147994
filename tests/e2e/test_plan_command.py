"""`flowforge plan` as a user meets it, on the default model's text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowforge.cli.app import app

WORKFLOWS = Path(__file__).parents[2] / "workflows"
ANALYST = WORKFLOWS / "analyst.yaml"


def plan(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


@pytest.mark.model
def test_the_analyst_has_one_exact_prompt_and_bounds_behind_it(default_model_dir: Path) -> None:
    result = plan(ANALYST, "-i", "topic=bicycles", "--model", default_model_dir, "--json")

    assert 0 == result.exit_code
    told = json.loads(result.stdout)
    angles, draft, *_, report = told["generations"]
    assert angles["prompt"]["least"] == angles["prompt"]["most"] == angles["prefilled"]["most"]
    assert ("angles", "angles") == (draft["continues"], draft["reused_from"])
    assert ("report", False) == (report["path"], report["prompt"]["most"] is None)
    assert "fits" == told["context_fit"]


@pytest.mark.model
@pytest.mark.parametrize(("limit", "code"), [("10", 1), ("100000", 0)])
def test_a_prefill_that_may_exceed_the_limit_ends_with_1(
    limit: str, code: int, default_model_dir: Path
) -> None:
    result = plan(ANALYST, "--model", default_model_dir, "--max-prefill", limit)

    assert code == result.exit_code
    assert ("expected at most 10\n" in result.stderr) == (code == 1)
    assert "critical path" in result.stdout


@pytest.mark.model
@pytest.mark.parametrize(
    ("pages", "code", "fit"), [("1", 1, "does not fit"), ("100000", 0, "fits")]
)
def test_too_few_pages_end_with_1(pages: str, code: int, fit: str, default_model_dir: Path) -> None:
    result = plan(ANALYST, "--model", default_model_dir, "--pages", pages)

    assert code == result.exit_code
    assert f"{int(pages):,} there: {fit}\n" in result.stdout
    assert ("KV pages, of 1 there\n" in result.stderr) == (code == 1)


@pytest.mark.model
@pytest.mark.parametrize("file", sorted(WORKFLOWS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_has_a_plan_within_the_context_as_far_as_known(
    file: Path, default_model_dir: Path
) -> None:
    arguments = ["-i", "text=Ten short words."] if file.stem == "map_reduce_summary" else []

    result = plan(file, *arguments, "--model", default_model_dir, "--json")

    assert 0 == result.exit_code, result.output
    told = json.loads(result.stdout)
    # Nobody knows how long a text it is that a tool will give.
    reads_results = file.stem in {"sql_analyst", "trip_agent"}
    assert ("may not fit" if reads_results else "fits") == told["context_fit"]
    assert reads_results == (told["cost"]["prefilled"]["most"] is None)


@pytest.mark.model
def test_planning_imports_no_torch(default_model_dir: Path) -> None:
    arguments = ["flowforge", "plan", str(ANALYST), "--model", str(default_model_dir)]
    script = (
        f"import sys; sys.argv = {arguments!r}\n"
        "from flowforge.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    sys.stderr.write(' '.join({'torch', 'transformers'} & set(sys.modules)))\n"
    )

    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    assert "" == run.stderr
    assert "plan of 'analyst'" in run.stdout


def test_a_workflow_with_errors_ends_with_3(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("flowforge: 1\nname: broken\n", encoding="utf-8")

    assert 3 == plan(file).exit_code
