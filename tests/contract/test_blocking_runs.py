"""`run_sync`, and where an error of a backend is said to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import flowforge as ff

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = "flowforge: 1\nname: t\nsteps:\n  a: { user: hi, gen: {} }\noutputs: { a: '${ a }' }\n"


@pytest.fixture(name="workflow")
def workflow_file(tmp_path: Path) -> Path:
    file = tmp_path / "workflow.yaml"
    file.write_text(WORKFLOW, encoding="utf-8")
    return file


async def test_run_sync_inside_an_event_loop_says_what_to_write(workflow: Path) -> None:
    with pytest.raises(ff.WorkflowError) as caught:
        ff.run_sync(workflow, backend=ff.ScriptBackend({"a": "x"}))

    assert ("WF615", "write 'await flowforge.run(…)' there") == (
        caught.value.code,
        caught.value.help,
    )


def test_an_error_of_a_backend_is_placed_at_its_step(workflow: Path) -> None:
    with pytest.raises(ff.RunFailedError) as caught:
        ff.run_sync(workflow, backend=ff.ScriptBackend({}))

    location = caught.value.location
    assert location is not None
    assert (str(workflow), 4) == (location.file, location.line)


def test_problems_of_a_file_are_raised_by_a_public_name(tmp_path: Path) -> None:
    with pytest.raises(ff.DiagnosticsError):
        ff.load(tmp_path / "none.yaml")
