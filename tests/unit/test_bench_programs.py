"""The workloads as workflows: they compute what the same calls do when the engine is stepped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from flowforge.bench.baselines import BASELINES
from flowforge.bench.figures import counts_of, times_of
from flowforge.bench.program_calls import Continued, Output, Segment, Workload
from flowforge.bench.program_run import random_texts
from flowforge.bench.program_workflows import workflows_of
from flowforge.bench.step_log import num_distinct_pages
from flowforge.bench.suite import SuiteOptions, enough_pages, random_model, run_once
from flowforge.bench.token_text import ids_of, plain_template, text_of, token_tokenizer
from flowforge.bench.workloads import WORKLOADS
from flowforge.engine.text.messages import Message
from flowforge.language.program import Call, Gen
from flowforge.runtime.run import RunFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.bench.program_run import ProgramRun
    from flowforge.bench.suite import BenchModel

COUNTED = SuiteOptions.scaled(16, repeats=0, num_pages=None)
TIMED = SuiteOptions.scaled(16, repeats=1, num_pages=None)


@pytest.fixture(scope="module")
def model() -> Iterator[BenchModel]:
    with random_model("tiny") as made:
        yield made


def both_ways(
    workload: Workload, model: BenchModel, baseline: str = "flow"
) -> tuple[ProgramRun, ProgramRun]:
    """Stepped by hand, and as workflows."""
    num_pages = enough_pages(workload, COUNTED)
    by_hand, as_workflows = (
        run_once(workload, BASELINES[baseline], model, options, num_pages)
        for options in (COUNTED, TIMED)
    )
    return by_hand, as_workflows


@pytest.mark.parametrize(
    ("name", "num_programs", "baseline"),
    [
        ("tips5", 2, "flow"),
        ("judge6", 1, "flow"),
        ("react", 2, "flow"),
        ("genagents", 2, "flow"),
        ("hellaswag20", 2, "flow"),
        ("map_reduce", 1, "flow"),
        ("react", 2, "serial"),
        ("tot3x3", 1, "batch"),
    ],
)
def test_workflows_compute_and_write_what_the_stepped_calls_do(
    name: str, num_programs: int, baseline: str, model: BenchModel
) -> None:
    workload = WORKLOADS[name]().first_programs(num_programs).scaled(16, 0.001)

    by_hand, as_workflows = both_ways(workload, model, baseline)

    assert by_hand.texts.prompts == as_workflows.texts.prompts
    assert by_hand.texts.outputs == as_workflows.texts.outputs
    expected, found = (counts_of(workload, one) for one in (by_hand, as_workflows))
    assert expected.unique_tokens == found.unique_tokens
    assert expected.prefilled_tokens == found.prefilled_tokens
    assert expected.prefill_amplification == found.prefill_amplification


def test_a_context_that_was_cut_goes_on_with_what_is_left_of_it(model: BenchModel) -> None:
    workload = Workload("cut")
    first = workload.add(0, [Segment("shared", 4), Segment("asked", 3)], 6, (), 0.001)
    within = workload.add(0, [Continued(first, 10), Segment("more", 2)], 5, [first])
    workload.add(0, [Continued(within, 5), Output(first), Segment("end", 2)], 4, [first, within])

    by_hand, as_workflows = both_ways(workload, model)

    assert by_hand.texts.prompts == as_workflows.texts.prompts
    assert by_hand.texts.outputs == as_workflows.texts.outputs


def test_calls_are_written_as_an_author_would() -> None:
    """A conversation that goes on is forked, and what a tool returns is no input of the prompt."""
    workload = Workload("turns")
    asked, seen = Segment("asked", 3), Segment("seen", 4)
    first = workload.add(0, [asked], 6, (), wait_s=0.5)
    workload.add(0, [asked, Output(first), seen], 2, [first])
    workload.add(0, [Segment("other", 2)], 1, [first])

    (workflow,) = workflows_of(workload, random_texts(64), 1.0)
    steps = workflow.program.steps

    assert ["call_0", "tool_0", "call_1", "call_2"] == list(steps)
    goes_on, tool = steps["call_1"].verb, steps["tool_0"].verb
    assert isinstance(goes_on, Gen) and goes_on.from_step == "call_0"
    assert isinstance(tool, Call)
    assert {"call_0", "tool_0"} == steps["call_1"].needs
    assert {"tool_0"} == steps["call_2"].needs
    assert [2, 3, 4] == sorted(len(str(text)) for text in workflow.inputs.values())


def test_a_workload_that_fails_as_workflows_says_why(model: BenchModel) -> None:
    workload = Workload("too long")
    workload.add(0, [Segment("asked", 40)], 8)

    with pytest.raises(RunFailedError, match="EN202"):
        run_once(workload, BASELINES["flow"], model, TIMED, 16)


def test_a_run_says_how_long_it_took_and_waited(model: BenchModel) -> None:
    workload = Workload("turns")
    first = workload.add(0, [Segment("asked", 8)], 4, (), wait_s=0.05)
    workload.add(0, [Segment("asked", 8), Output(first), Segment("seen", 2)], 4, [first])

    run = run_once(workload, BASELINES["flow"], model, replace(TIMED, page_size=4), 64)
    times = times_of(workload, [run])

    before, after = run.times
    assert before.start_s <= before.first_token_s <= before.end_s
    assert before.end_s + 0.05 <= after.start_s <= after.first_token_s <= after.end_s
    assert run.busy_s + 0.049 <= run.makespan_s == after.end_s
    assert 0 < times.host_share < 1


def test_every_character_is_one_token() -> None:
    tokenizer = token_tokenizer(300)
    ids = [16, 299, 16, 42]

    assert ids == tokenizer.encode(text_of(ids))
    assert text_of(ids) == tokenizer.decode(ids)
    assert tuple(ids) == ids_of(text_of(ids))
    template = plain_template(tokenizer)
    said = [Message("system", text_of([20])), Message("user", text_of(ids))]
    assert [20, *ids] == template.render(said)
    history = [*said, Message("assistant", text_of([7]))]
    following = [Message("user", text_of([9]))]
    assert [9] == template.continuation(history, following, last_token=7)


def test_pages_are_counted_once_for_all_but_filled_parts() -> None:
    texts = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2), (7,)]

    assert (2 + 2) + 1 == num_distinct_pages(2, texts)
