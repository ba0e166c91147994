"""docs/performance.md: made of what was recorded, and what it says of targets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from flowforge.bench.engine_suite import EngineSuiteResult, SceneTimes
from flowforge.bench.figures import Counts, Times
from flowforge.bench.performance_page import main_figures, performance_files
from flowforge.bench.pressure import PressureResult
from flowforge.bench.quiet import Quietness
from flowforge.bench.result_files import Record, read_record
from flowforge.bench.scenes import Scene
from flowforge.bench.suite import Result, SuiteResult
from flowforge.bench.targets import Target, targets_of
from flowforge.cli.app import app

if TYPE_CHECKING:
    from flowforge.bench.result_files import Found

ROOT = Path(__file__).parents[2]
MADE_BY = "flowforge bench page $(find benchmarks/results -name '*.json') --out docs"
RECORDED = sorted((ROOT / "benchmarks" / "results").rglob("*.json"))
QUIET = Quietness(1.9, 0.05)
COUNTS = Counts(100, 50, 80, 80, 1.0, 1.1, 20, 20, 60, 30, 0)
TIMES = Times(1.0, 50.0, 0.1, 0.01, 0.04, 0.8, 1.0, 1.9)


def result(workload: str, baseline: str, seconds: float | None, pa: float = 1.0) -> Result:
    times = None if seconds is None else replace(TIMES, makespan_s=seconds)
    return Result(workload, baseline, 64, replace(COUNTS, prefill_amplification=pa), times)


def suite(*results: Result) -> SuiteResult:
    return SuiteResult(results, QUIET, "a machine, load 2.0")


def engines(**seconds: float) -> EngineSuiteResult:
    scene = Scene("decode", 1, 256, 16)
    names = {"flowforge": "flowforge", "bf16": "transformers-bf16", "llama": "llama.cpp"}
    times = tuple(
        SceneTimes(names[name], scene, (one,), (one,))  # type: ignore[arg-type]  # names are literals
        for name, one in seconds.items()
    )
    return EngineSuiteResult(times, {"llama.cpp-unified": "it is not installed"}, QUIET)


def figures(found: Found) -> dict[str, tuple[str, bool]]:
    return {one.what: (one.measured_text, one.is_reached) for one in targets_of([found])}


@pytest.mark.parametrize("name", ["performance.md", "performance-engine.svg"])
def test_the_page_is_what_the_recorded_runs_say(name: str) -> None:
    made = performance_files([read_record(file) for file in RECORDED], MADE_BY)

    # If not: MADE_BY, with --readme README.md
    assert made[name] == (ROOT / "docs" / name).read_text("utf-8")


def test_the_readme_has_the_main_figures() -> None:
    told = main_figures([read_record(file) for file in RECORDED])

    assert told in (ROOT / "README.md").read_text("utf-8")


def test_figures_are_judged_as_they_are_written() -> None:
    least, most = Target("a", "engine", 2.996, 3.0), Target("b", "pressure", 1.254, 1.25, False)

    assert ("3.00×", "≥ 3×", True) == (least.measured_text, least.asked_text, least.is_reached)
    assert most.is_reached
    assert not replace(least, measured=2.99).is_reached
    assert not replace(most, measured=1.256).is_reached


def test_engines_are_compared_where_both_played() -> None:
    found = figures(engines(flowforge=1.0, bf16=4.0, llama=1.1))

    assert {
        "one text, over transformers in bfloat16": ("4.00×", True),
        "one text, over llama.cpp on the same file": ("1.10×", False),
    } == found


def test_policies_are_compared_by_their_mean_and_their_worst_workload() -> None:
    found = figures(
        suite(
            *(result("a", name, one) for name, one in (("serial", 8), ("block16", 2), ("flow", 1))),
            *(result("b", name, one) for name, one in (("serial", 8), ("block16", 1), ("flow", 2))),
        )
    )

    assert ["5.66×", "1.00×", "0.50×"] == [measured for measured, _ in found.values()]
    assert not any(is_reached for _, is_reached in found.values())


def test_policies_keep_their_order_where_a_workload_ran_under_fewer() -> None:
    few = (result("a", "serial", 4.0), result("a", "flow", 1.0))
    many = tuple(result("b", name, 2.0) for name in ("serial", "batch", "radix", "flow"))
    record = Record("bench", "2026-11-30", "a machine, load 2.0", suite(*few, *many))

    page = performance_files([record], MADE_BY)["performance.md"]

    assert ["serial", "batch", "radix", "flow"] == suite(*few, *many).baselines
    assert "| flow over | serial | batch | radix |" in page
    assert "| a | 4.00× | - | - |" in page


def test_counts_are_told_of_the_worst_workload() -> None:
    found = figures(suite(result("a", "flow", None), result("b", "flow", None, 1.02)))

    assert ("1.020", False) == found[
        "prompt tokens computed over distinct ones, the worst workload"
    ]
    assert 3 == len(found)


def test_too_few_pages_are_told_of_the_worst_case() -> None:
    one = PressureResult("a", "flow", "held", 0.4, 9, 1.5, 1.25, 3, 0.0)
    worse = replace(one, prefill_amplification=1.6)

    assert [("1.28", False)] == [*figures((one, worse, replace(worse, baseline="radix"))).values()]


def test_a_page_says_commands_days_machines_and_what_is_missed() -> None:
    records = [
        Record("bench engine", "2026-11-30", "m, load 3", engines(flowforge=1.0, llama=1.1)),
        Record("bench --workload a --json", "2026-12-01", "m, load 1", suite(result("a", "b", 2))),
        Record("bench --workload c --json", "2026-12-01", "m, load 2", suite(result("c", "b", 2))),
    ]

    files = performance_files(records, "made")

    page = files["performance.md"]
    assert "Made by `made`; do not edit." in page
    assert "bench engine\n" in page
    assert "# for each workload, with --workload NAME\nbench --json\n" in page
    assert "on 2026-12-01 on m; other work took at most 0.05 cores" in page
    assert "- one text, over llama.cpp on the same file: 1.10× where ≥ 1.2× is asked" in page
    assert "llama.cpp-unified was left out: it is not installed" in page
    for name in ("performance-engine.svg", "performance-workflows.svg"):
        assert f"]({name})" in page
        ElementTree.fromstring(files[name])


def test_the_command_writes_the_page_beside_its_pictures(tmp_path: Path) -> None:
    files = [str(file) for file in RECORDED]

    done = CliRunner().invoke(app, ["bench", "page", *files, "--out", str(tmp_path)])

    assert 0 == done.exit_code, done.output
    made = (tmp_path / "performance.md").read_text("utf-8")
    assert made.startswith("# Performance\n")
    assert f"wrote {tmp_path / 'performance.md'}" in done.stderr


def test_the_command_renews_the_table_of_a_readme(tmp_path: Path) -> None:
    files = [str(file) for file in RECORDED]
    told = main_figures([read_record(file) for file in RECORDED])
    readme, other = tmp_path / "README.md", tmp_path / "other.md"
    head = told.splitlines()[0]
    readme.write_text(f"Figures\n\n{head}\n|---|\n| old | 1 |\n\nBehind\n", "utf-8")
    other.write_text("No table\n", "utf-8")

    words = ["bench", "page", *files, "--out", str(tmp_path), "--readme"]
    done = CliRunner().invoke(app, [*words, str(readme)])
    refused = CliRunner().invoke(app, [*words, str(other)])

    assert 0 == done.exit_code, done.output
    assert f"Figures\n\n{told}\nBehind\n" == readme.read_text("utf-8")
    assert 2 == refused.exit_code
    assert "has no table of main figures" in refused.stderr


@pytest.mark.parametrize("lacking", ["command", "date", "results"])
def test_a_file_that_is_no_record_is_refused(lacking: str, tmp_path: Path) -> None:
    whole = json.loads(RECORDED[0].read_text("utf-8"))
    del whole[lacking]
    (tmp_path / "a.json").write_text(json.dumps(whole), "utf-8")

    done = CliRunner().invoke(
        app, ["bench", "page", str(tmp_path / "a.json"), "--out", str(tmp_path)]
    )

    assert 4 != done.exit_code != 0
    assert "error[WF534]" in done.stderr
    assert lacking in done.stderr
