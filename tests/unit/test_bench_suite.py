"""The bench on random weights: what the engine computes under each policy, counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from flowforge.bench.baselines import BASELINES, MAIN_BASELINES
from flowforge.bench.quiet import Quietness
from flowforge.bench.suite import SuiteOptions, random_model, run_suite
from flowforge.bench.workloads import WORKLOADS
from flowforge.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

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
