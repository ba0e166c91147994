"""The bench on random weights: what the engine computes under each policy, counted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from flowforge.bench.baselines import BASELINES, MAIN_BASELINES
from flowforge.bench.quiet import Quietness
from flowforge.bench.result_files import read_results
from flowforge.bench.suite import SuiteOptions, enough_pages, random_model, run_once, run_suite
from flowforge.bench.workloads import WORKLOADS
from flowforge.cli.app import app
from flowforge.engine.attention.compiled import find_attention_library
from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flowforge.bench.suite import BenchModel, Result

COUNTING = SuiteOptions(repeats=0)


@pytest.fixture(scope="module")
def model() -> Iterator[BenchModel]:
    with random_model("tiny") as made:
        yield made


def counted(name: str, model: BenchModel, *baselines: str, num_programs: int = 1) -> list[Result]:
    workload = WORKLOADS[name]().first_programs(num_programs)
    policies = [BASELINES[one] for one in baselines]
    return list(run_suite([workload], policies, model, COUNTING, lambda _: None).results)


@pytest.mark.parametrize("name", ["tips5", "judge6", "json_fields", "mmlu5shot"])
def test_every_distinct_prompt_token_is_computed_once(name: str, model: BenchModel) -> None:
    (result,) = counted(name, model, "flow", num_programs={"mmlu5shot": 12}.get(name, 1))

    assert result.counts.prefilled_tokens == result.counts.unique_tokens
    assert result.counts.read_amplification <= 1.15
    assert result.counts.num_preemptions == 0


def test_each_policy_computes_what_its_rules_say(model: BenchModel) -> None:
    results = counted("hellaswag20", model, *MAIN_BASELINES, num_programs=2)
    counts = {one.baseline: one.counts for one in results}

    for name in ("serial", "batch"):
        assert counts[name].prefilled_tokens == counts[name].prompt_tokens
    # Pages leave what stands in partly filled ones; cold siblings of one step are each computed.
    assert 1 < counts["block16"].prefill_amplification < 2
    assert 1 < counts["radix"].prefill_amplification < 2
    assert counts["serial"].num_steps > counts["batch"].num_steps
    assert counts["flow"].prefilled_tokens == counts["flow"].unique_tokens


@pytest.mark.parametrize(
    ("name", "num_programs", "has_few_pages"),
    [("tips5", 1, False), ("react", 3, True), ("judge6", 1, False), ("mmlu5shot", 6, True)],
)
def test_greedy_tokens_are_the_same_with_every_part_on_and_off(
    name: str, num_programs: int, has_few_pages: bool, model: BenchModel
) -> None:
    if find_attention_library() is None:
        pytest.skip("there is no C compiler on this machine")
    workload = WORKLOADS[name]().first_programs(num_programs).scaled(8, 1.0)
    options = replace(
        SuiteOptions.scaled(8, repeats=0, num_pages=None), temperature=0.0, is_deterministic=True
    )
    num_pages = enough_pages(workload, options)
    plain = run_once(workload, BASELINES["serial"], model, options, num_pages)
    if has_few_pages:
        texts = plain.texts
        longest = max(len(texts.prompts[idx]) + len(texts.outputs[idx]) for idx in texts.prompts)
        num_pages = 3 * longest // (2 * options.page_size)

    for baseline in BASELINES.values():
        run = run_once(workload, baseline, model, options, num_pages)
        assert plain.texts.outputs == run.texts.outputs, baseline.name


def test_counts_are_the_same_every_time(model: BenchModel) -> None:
    first, second = (counted("skeleton", model, "flow") for _ in range(2))

    assert first == second


def test_the_command_counts_and_prints_json() -> None:
    words = "bench workflows --shape tiny --count --json --workload skeleton --programs 1"
    result = CliRunner().invoke(app, [*words.split(), "--baseline", "flow"])

    assert result.exit_code == 0, result.output
    (of_flow,) = json.loads(result.stdout)["results"]
    assert of_flow["workload"] == "skeleton"
    assert of_flow["counts"]["prefill_amplification"] == 1
    assert of_flow["times"] is None


def test_results_of_several_runs_are_shown_together(tmp_path: Path) -> None:
    """Two workloads measured one after the other, each written as JSON."""
    words = "bench workflows --shape tiny --programs 1 --scale 8 --repeats 1 --json --workload"
    files = [tmp_path / f"{name}.json" for name in ("skeleton", "mmlu5shot")]
    for path in files:
        run = [*words.split(), path.stem, "--baseline", "batch", "--baseline", "flow"]
        printed = CliRunner().invoke(app, [*run, "--even-if-busy"])
        assert printed.exit_code == 0, printed.output
        path.write_text(printed.stdout)
    plot = tmp_path / "plot.svg"

    shown = CliRunner().invoke(
        app,
        ["bench", "figures", *map(str, files), "--even-if-busy", "--plot", str(plot)],
    )

    assert shown.exit_code == 0, shown.output
    assert "flow over batch:" in shown.stdout
    assert "(geometric mean of 2;" in shown.stdout
    root = ElementTree.parse(plot).getroot()
    labels = {"".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"skeleton", "mmlu5shot", "geometric mean", "flow"} <= labels


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{}", "KeyError: 'results'"), ("no json", "JSONDecodeError"), (None, "cannot be read")],
)
def test_a_file_that_holds_no_results_is_told(
    text: str | None, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(WorkflowError, match=reason) as caught:
        read_results([path])

    assert caught.value.code == "WF534"


def test_a_workload_is_not_joined_twice(tmp_path: Path) -> None:
    words = "bench workflows --shape tiny --count --json --workload skeleton --programs 1"
    result = CliRunner().invoke(app, [*words.split(), "--baseline", "flow"])
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for path in files:
        path.write_text(result.stdout)

    with pytest.raises(WorkflowError, match=r"'skeleton' is in .*first\.json as well"):
        read_results(files)


@pytest.mark.parametrize(
    ("quietness", "is_quiet"),
    [
        (Quietness(0.99, 0.0), True),
        (Quietness(0.99, None), True),
        (Quietness(0.7, 0.0), False),
        (Quietness(0.99, 0.5), False),
    ],
)
def test_a_machine_is_quiet_when_nobody_else_computes(quietness: Quietness, is_quiet: bool) -> None:
    assert is_quiet == quietness.is_quiet
