"""How the viewer looks: an SVG of each screen, compared with the one that was looked at.

`UPDATE_SNAPSHOTS=1 pytest tests/snapshot/test_viewer_screens.py` writes them anew; look at each.
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from viewer_runs import GivenSource, NotedControl, asking, done, failed, paged, prompted, running

from flowforge.backends.protocol import BackendStatistics
from flowforge.journal.journal import Journal
from flowforge.journal.records import RunSummary
from flowforge.tui.app import ViewerApp
from flowforge.tui.opened_run import OpenedRun
from flowforge.tui.pages import LinesPage
from flowforge.tui.run_screen import RunScreen
from flowforge.tui.runs_screen import RunsScreen
from flowforge.view.sources import RunListing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.pilot import Pilot
    from textual.strip import Strip

    from flowforge.journal.records import RunStatus
    from flowforge.runtime.events import Event

FOLDER = Path(__file__).parent / "viewer"
STATES = {"running": running(), "asking": asking(), "failed": failed(), "done": done(), "empty": []}
PAGES = {**STATES, "paged": paged(), "prompted": prompted()}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Textual runs on asyncio."""
    return "asyncio"


@pytest.fixture(autouse=True)
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second passes while a picture is taken."""
    clock = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr("flowforge.tui.run_screen.time", clock)


def viewer_on(events: list[Event], *, is_ascii: bool = False) -> ViewerApp:
    counted = BackendStatistics(
        pages_total=64, pages_free=50, pages_cached=4, pages_held=10, pages_peak=12
    )
    source = GivenSource([*events], statistics=counted)
    opened = OpenedRun("0630-1200-abcdef", source, None, NotedControl())
    return ViewerApp(run=opened, is_ascii=is_ascii)


async def picture_of(app: ViewerApp, size: tuple[int, int], *keys: str) -> str:
    async with app.run_test(size=size) as pilot:
        await _settled(app, pilot)
        return await _picture_behind(app, pilot, keys)


async def _picture_behind(app: ViewerApp, pilot: Pilot[None], keys: Sequence[str]) -> str:
    for key in keys:
        await pilot.press(key)
    return await _settled(app, pilot)


async def _settled(app: ViewerApp, pilot: Pilot[None]) -> str:
    """The picture once nothing changes any more: panels and keys come one after another.

    What timers would draw is drawn at once, so that none is waited for.
    """
    seen: list[list[Strip]] = []
    while len(seen) < 3 or seen[-3:] != [seen[-1]] * 3:
        screen = app.screen
        if isinstance(screen, RunScreen):
            screen._drawn = None  # pyright: ignore[reportPrivateUsage]
            screen._drawn_at_s = 0.0  # pyright: ignore[reportPrivateUsage]
            screen._frame()  # pyright: ignore[reportPrivateUsage]
        elif isinstance(screen, LinesPage | RunsScreen):
            screen._draw()  # pyright: ignore[reportPrivateUsage]
        await pilot.pause()
        compositor = app.screen._compositor  # pyright: ignore[reportPrivateUsage]
        seen.append(compositor.render_strips())
    return app.export_screenshot(title="FlowForge")


def compare(name: str, picture: str) -> None:
    """With what was looked at; ids of parts are made of the whole and say nothing."""
    shown = re.sub(r"terminal-\d+", "terminal", picture)
    file = FOLDER / f"{name}.svg"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == shown


@pytest.mark.parametrize("state", STATES)
async def test_a_run_in_each_state(state: str) -> None:
    compare(f"run-{state}", await picture_of(viewer_on(STATES[state]), (120, 36)))


@pytest.mark.parametrize("state", ["running", "asking", "failed", "empty"])
async def test_a_run_at_80_by_24(state: str) -> None:
    compare(f"run-{state}-80x24", await picture_of(viewer_on(STATES[state]), (80, 24)))


async def test_a_run_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    compare("run-no-colour", await picture_of(viewer_on(STATES["failed"]), (100, 30)))


async def test_a_run_in_ascii() -> None:
    picture = await picture_of(viewer_on(STATES["done"], is_ascii=True), (100, 30))

    compare("run-ascii", picture)


@pytest.mark.parametrize(
    ("name", "state", "keys"),
    [
        ("step", "asking", ("down", "down", "enter")),
        ("step-prompt", "prompted", ("down", "down", "enter")),
        ("failure", "failed", ("exclamation_mark",)),
        ("cache", "paged", ("K",)),
        ("cache-empty", "empty", ("K",)),
        ("answer", "asking", ("a",)),
        ("cancel", "running", ("down", "c")),
        ("limits", "running", ("L",)),
        ("help", "running", ("question_mark",)),
        ("past", "done", ("less_than_sign", "less_than_sign")),
    ],
)
async def test_each_page(name: str, state: str, keys: tuple[str, ...]) -> None:
    compare(name, await picture_of(viewer_on(PAGES[state]), (100, 30), *keys))


@pytest.mark.parametrize(
    ("name", "state", "keys"),
    [
        ("step-80x24", "prompted", ("down", "down", "enter")),
        ("cache-80x24", "paged", ("K",)),
        ("answer-80x24", "asking", ("a",)),
    ],
)
async def test_pages_at_80_by_24(name: str, state: str, keys: tuple[str, ...]) -> None:
    compare(name, await picture_of(viewer_on(PAGES[state]), (80, 24), *keys))


async def test_pages_of_a_run_that_goes_on_at_80_by_24() -> None:
    app = viewer_on(STATES["running"])
    async with app.run_test(size=(80, 24)) as pilot:
        await _settled(app, pilot)
        for name, keys in (
            ("limits", ["L"]),
            ("help", ["question_mark"]),
            ("cancel", ["down", "c"]),
            ("step-running", ["G", "enter"]),
        ):
            compare(f"{name}-80x24", await _picture_behind(app, pilot, keys))
            await pilot.press("escape")


async def test_a_list_of_runs_in_each_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_at = datetime(2026, 6, 30, 12).timestamp()
    states = ["running", "done", "failed", "cancelled", "interrupted"]
    runs = [
        RunListing(
            RunSummary(
                f"0630-120{idx}-abcdef",
                "漢字 [b]run[/b]" if state == "done" else "analyst",
                "analyst.yaml",
                "running" if state == "interrupted" else cast("RunStatus", state),
                begun_at,
                None if state in {"running", "interrupted"} else begun_at + 60 * idx,
                0,
            ),
            state,
        )
        for idx, state in enumerate(states)
    ]

    def listings(_: object) -> list[RunListing]:
        return runs

    monkeypatch.setattr("flowforge.tui.runs_screen.listings", listings)

    with Journal(tmp_path / "runs.db") as journal:
        app = ViewerApp(journal)
        async with app.run_test(size=(80, 24)) as pilot:
            compare("runs-80x24", await _settled(app, pilot))
            await pilot.resize_terminal(120, 36)
            compare("runs", await _settled(app, pilot))


async def test_a_list_without_runs(tmp_path: Path) -> None:
    with Journal(tmp_path / "runs.db") as journal:
        compare("runs-empty", await picture_of(ViewerApp(journal), (80, 24)))
