"""Processes that are killed with SIGKILL at a commit, and others that go on with their runs.

A sample: `benchmarks/kill_matrix.py` goes through every commit, and kills at random besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from durable_runs import works_of
from killed_processes import KILLED, Stand

from flowforge.journal.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("workflow", "failpoints"),
    [
        ("rounds", ["before-commit:4", "after-commit:3"]),
        ("branches", ["after-commit:3", "before-commit:3"]),
        ("approval", ["tool:1"]),
    ],
)
def test_a_killed_run_goes_on_to_the_same_result_and_journal(
    workflow: str, failpoints: list[str], tmp_path: Path
) -> None:
    whole, cut = Stand(tmp_path / "whole", workflow), Stand(tmp_path / "cut", workflow)
    for stand in (whole, cut):
        stand.prepare()
    expected, told = whole.begin().communicate()
    assert expected, told

    first = cut.begin(failpoints[0])
    first.communicate()
    assert KILLED == first.returncode
    for failpoint in failpoints[1:]:
        again = cut.resume(failpoint)
        again.communicate()
        assert KILLED == again.returncode
    last = cut.resume()
    outputs, told = last.communicate()

    assert (0, expected) == (last.returncode, outputs), told
    assert set(whole.lines()) == set(cut.lines())
    name = run_of(whole.journal)
    assert works_of(whole.journal, name) == works_of(cut.journal, run_of(cut.journal))


def run_of(path: Path) -> str:
    with Journal(path) as journal:
        return journal.runs()[0].run_id
