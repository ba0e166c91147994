"""What a run computes with too few pages is held to eviction that knows the future."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.bench.baselines import BASELINES
from flowforge.bench.clairvoyant import clairvoyant_tokens
from flowforge.bench.pressure import run_pressure
from flowforge.bench.program_calls import Segment, Workload, with_unlike_tokens
from flowforge.bench.program_window import ProgramWindow, program_needs
from flowforge.bench.step_log import Progress, StepLog
from flowforge.bench.suite import SuiteOptions, random_model
from flowforge.bench.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.bench.suite import BenchModel


@pytest.fixture(scope="module")
def model() -> Iterator[BenchModel]:
    with random_model("tiny") as made:
        yield made


@pytest.mark.parametrize(("name", "num_programs"), [("tips5", 4), ("tot_deep2x4", 2), ("react", 6)])
def test_little_more_is_computed_than_with_eviction_that_knows_the_future(
    name: str, num_programs: int, model: BenchModel
) -> None:
    workload = WORKLOADS[name]().first_programs(num_programs).scaled(8, 1.0)
    options = SuiteOptions.scaled(8, repeats=0, num_pages=None)

    results = run_pressure([workload], [BASELINES["flow"]], model, options, lambda _: None, (0.5,))

    assert ["held", "distinct"] == [one.peak_of for one in results]
    for one in results:
        assert one.over_clairvoyant <= 1.25
        assert one.num_preemptions == 0


def replayed(turns: str, num_rows: int) -> int:
    """Calls of three tokens, each alone, by the letter of its prompt; pages of one row."""
    workload, log = Workload("turns"), StepLog(1)
    for idx, letter in enumerate(turns):
        workload.add(idx, [Segment(letter, 3)], 0)
        log.steps.append((Progress(idx, 3),))
    return clairvoyant_tokens(workload, with_unlike_tokens(workload), log, num_rows)


@pytest.mark.parametrize(
    ("turns", "num_rows", "num_computed"),
    [
        ("aba", 6, 6),  # all there is fits
        ("aba", 3, 9),  # each takes all rows
        ("abab", 5, 3 + 3 + 1 + 1),
        ("abcab", 6, 3 + 3 + 3 + 3),
    ],
)
def test_clairvoyant_eviction_takes_what_is_needed_last(
    turns: str, num_rows: int, num_computed: int
) -> None:
    assert num_computed == replayed(turns, num_rows)


def test_programs_are_begun_as_long_as_their_pages_fit() -> None:
    workload = Workload("two turns")
    for program in range(3):
        first = workload.add(program, [Segment("shared", 32), Segment(program, 16)], 16)
        workload.add(program, [Segment("shared", 32), Segment(program, 16)], 32, [first])
    needs = program_needs(workload, with_unlike_tokens(workload), 16)
    # Two shared pages; of their own two in the first call and three in the second.
    assert [(2, 2)] * 3 == [(one.num_private, len(one.shared)) for one in needs.values()]

    window = ProgramWindow(needs, 6)
    window.open(0)
    assert window.may_open(1)
    window.open(1)
    assert not window.may_open(2)
    window.close(0)
    assert window.may_open(2)
