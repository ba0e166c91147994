"""The line of keys: those that work where the user is, as many as fit, for the mouse too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from viewer_runs import GivenSource, running

from flowforge.tui.app import ViewerApp
from flowforge.tui.key_line import KeyLine
from flowforge.tui.opened_run import OpenedRun
from flowforge.tui.pages import LinesPage

if TYPE_CHECKING:
    from textual.pilot import Pilot


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Textual runs on asyncio."""
    return "asyncio"


def viewer() -> ViewerApp:
    return ViewerApp(run=OpenedRun("0630-1200-abcdef", GivenSource(running()), None, None))


def shown(app: ViewerApp) -> str:
    return app.screen.query_one(KeyLine).render_line(0).text


async def pressed(pilot: Pilot[None], key: str) -> None:
    await pilot.press(key)
    await pilot.pause()


async def test_keys_of_the_panel_with_the_focus_come_first() -> None:
    app = viewer()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        elsewhere = shown(app)
        await pressed(pilot, "2")

        assert shown(app).startswith(" f Follow ")
        assert "Follow" not in elsewhere
        assert "q Quit" in elsewhere


async def test_keys_that_do_not_fit_are_left_out_whole() -> None:
    app = viewer()
    async with app.run_test(size=(30, 20)) as pilot:
        await pilot.pause()
        line = shown(app)

    assert 30 == len(line)
    assert line.split() == ["?", "Help", "space", "Pause"]


async def test_a_click_on_a_key_presses_it() -> None:
    app = viewer()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        at = shown(app).index("Help")
        await pilot.click(KeyLine, offset=(at, 0))
        await pilot.pause()

        assert isinstance(app.screen, LinesPage)
