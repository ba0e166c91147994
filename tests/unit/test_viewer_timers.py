"""Timers of the viewer on a machine that lets it wait."""

from __future__ import annotations

import itertools
import time

import anyio
import pytest
from textual import _time

from flowforge.tui.terminal_app import TerminalApp


@pytest.fixture
def anyio_backend() -> str:
    """Textual runs on asyncio."""
    return "asyncio"


@pytest.mark.anyio
async def test_a_timer_that_begins_late_still_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    app = TerminalApp(ansi_color=None)
    came = anyio.Event()
    looks = itertools.count()

    def late_for_one() -> float:
        # At each look of the timer a second has gone by: the process was not let run in between.
        is_late = anyio.get_current_task().name == "late"
        return time.monotonic() + (next(looks) if is_late else 0)

    async with app.run_test():
        monkeypatch.setattr(_time, "get_time", late_for_one)
        app.set_timer(0.005, came.set, name="late")
        with anyio.move_on_after(30):
            await came.wait()

    assert came.is_set()
