"""As many runs of a batch are open as pages have room for, and never none."""

from __future__ import annotations

import anyio
import pytest

from flowforge.backends.protocol import BackendStatistics
from flowforge.cli.open_runs import TOKENS_PER_PAGE, OpenRuns
from flowforge.runtime.events import Accounting


def accounting(num_pages: int) -> Accounting:
    """Of a run that computed so many pages of tokens."""
    num_tokens = num_pages * TOKENS_PER_PAGE
    return Accounting(
        prefilled_tokens=num_tokens - 5, reused_tokens=900, generated_tokens=5, cut_tokens=0,
        unique_prompt_tokens=None, pages_peak=0, pages_total=0, duration_s=1.0,
    )  # fmt: skip


async def most_open(open_runs: OpenRuns, num_runs: int) -> int:
    """How many of so many runs are inside once no other can go in; then all end."""
    done, inside, num_open = anyio.Event(), 0, 0

    async def run() -> None:
        nonlocal inside
        async with open_runs.inside():
            inside += 1
            await done.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(num_runs):
            tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        num_open = inside
        assert num_open == open_runs.num_open
        done.set()
    assert 0 == open_runs.num_open
    assert num_runs == inside
    return num_open


async def test_without_heeding_pages_as_many_are_open_as_were_asked_for() -> None:
    open_runs = OpenRuns(6)
    open_runs.ended(accounting(1_000))

    assert 6 == await most_open(open_runs, 9)


@pytest.mark.parametrize(("num_pages", "expected"), [(10, 8), (40, 2), (34, 2), (33, 3), (500, 1)])
async def test_so_many_are_open_as_fit_with_what_the_ended_held_in_the_mean(
    num_pages: int, expected: int
) -> None:
    open_runs = OpenRuns(8, lambda: BackendStatistics(pages_total=100))
    open_runs.ended(accounting(num_pages - 1))
    open_runs.ended(accounting(num_pages + 1))

    assert expected == await most_open(open_runs, 9)


async def test_few_are_open_until_one_has_said_what_they_hold() -> None:
    open_runs = OpenRuns(8, lambda: BackendStatistics(pages_total=100))

    assert 4 == await most_open(open_runs, 9)


async def test_a_run_that_fails_or_is_cancelled_inside_leaves_its_room() -> None:
    open_runs = OpenRuns(1)
    with pytest.raises(ValueError, match="broken"):
        async with open_runs.inside():
            raise ValueError("broken")
    with anyio.CancelScope() as scope:
        async with open_runs.inside():
            scope.cancel()
            await anyio.sleep_forever()

    assert 1 == await most_open(open_runs, 2)
