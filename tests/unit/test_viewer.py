"""The viewer, driven by its keys: what each does, at the sizes of real terminals."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from textual.binding import Binding
from textual.events import Key, Paste
from viewer_runs import (
    GivenSource,
    NotedControl,
    asking,
    done,
    events_of,
    failed,
    paged,
    running,
)

from flowforge.backends.protocol import Usage
from flowforge.control.detaching import Detached, NotBegun
from flowforge.errors import EngineError
from flowforge.runtime.events import (
    Event,
    RunStarted,
    StepAsked,
    StepFinished,
    StepStarted,
    StepText,
)
from flowforge.tui.app import ViewerApp
from flowforge.tui.dialogs import ConfirmDialog, LineDialog, LineField
from flowforge.tui.lines import LineList
from flowforge.tui.opened_run import OpenedRun
from flowforge.tui.pages import LinesPage
from flowforge.tui.run_screen import RunScreen
from flowforge.tui.stream_pane import StreamPane

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from textual.pilot import Pilot

    from flowforge.view.sources import Batch


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Textual runs on asyncio."""
    return "asyncio"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is copied and exported goes here."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path


WAIT_S = 60


class Viewer:
    """A viewer on a run that a test tells."""

    def __init__(
        self,
        events: list[Event],
        control: NotedControl | None = None,
        begin: NotedBegin | None = None,
    ) -> None:
        self.source = GivenSource(events)
        self.control = control
        self.opened = OpenedRun("0630-1200-abcdef", self.source, None, control, begin)
        self.app = ViewerApp(run=self.opened)

    @property
    def screen(self) -> RunScreen:
        (screen,) = (one for one in self.app.screen_stack if isinstance(one, RunScreen))
        return screen

    def text(self) -> str:
        """The words on the screen."""
        compositor = self.app.screen._compositor  # pyright: ignore[reportPrivateUsage]
        return "\n".join(strip.text for strip in compositor.render_strips())

    def told(self) -> list[str]:
        """What was said to the user."""
        notifications = self.app._notifications  # pyright: ignore[reportPrivateUsage]
        return [one.message for one in notifications]

    async def press(self, pilot: Pilot[None], *keys: str) -> str:
        await pilot.press(*keys)
        return await self.drawn(pilot)

    async def drawn(self, pilot: Pilot[None]) -> str:
        """The screen once a frame was drawn: the last one is not waited for, however soon it is."""
        screen = self.screen
        screen._drawn, screen._drawn_at_s = None, 0.0  # pyright: ignore[reportPrivateUsage]
        screen._frame()  # pyright: ignore[reportPrivateUsage]
        await pilot.pause()
        return self.text()

    async def drawn_with(self, pilot: Pilot[None], words: str) -> str:
        """The screen once these words are on it: a slow machine catches up before it draws."""
        until = time.monotonic() + WAIT_S
        while words not in (shown := await self.drawn(pilot)):
            assert time.monotonic() < until, f"{words!r} is not on the screen:\n{shown}"
        return shown


async def test_steps_texts_and_events_are_side_by_side() -> None:
    viewer = Viewer(running())
    async with viewer.app.run_test(size=(160, 48)) as pilot:
        shown = await viewer.drawn(pilot)

    for words in ("analyst", "● running", "▾● explore", "● [2]/draft", "✓ angles", "forks 3"):
        assert words in shown
    assert 3 == shown.count("of [red]a 漢字 bicycle[/red]")
    assert "is␛[2J what" in shown


@pytest.mark.parametrize("size", [(80, 24), (60, 20), (40, 10), (20, 5), (300, 90)])
async def test_every_size_is_drawn(size: tuple[int, int]) -> None:
    viewer = Viewer(asking())
    async with viewer.app.run_test(size=size) as pilot:
        shown = await viewer.drawn(pilot)
        await pilot.resize_terminal(100, 30)
        shown_later = await viewer.drawn(pilot)

    assert "analyst" in shown
    assert "explore" in shown_later


async def test_new_text_is_followed_until_the_user_scrolls_up() -> None:
    viewer = Viewer(events_of(RunStarted("w", {}), StepStarted("a", "gen")))
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        viewer.source.give(lines_of("a", 0, 100, first=2))
        assert "line 99" in await viewer.press(pilot, "2")
        assert "line 99" not in await viewer.press(pilot, "pageup", "pageup")
        viewer.source.give(lines_of("a", 100, 110, first=102))
        assert "line 109" not in await viewer.drawn_with(pilot, "10 new lines")
        assert "line 109" in await viewer.press(pilot, "f")


def lines_of(path: str, start: int, end: int, *, first: int) -> list[Event]:
    facts = [StepText(path, f"line {idx}\n", 2) for idx in range(start, end)]
    return events_of(*facts, first=first)


async def test_a_step_is_opened_with_its_output_and_left_again() -> None:
    viewer = Viewer(asking())
    async with viewer.app.run_test(size=(100, 40)) as pilot:
        await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "down", "down", "enter")
        assert "continues angles" in shown
        assert "Tool call price[0]" in shown
        await viewer.press(pilot, "m")
        assert "MarkdownPage" == type(viewer.app.screen).__name__
        await viewer.press(pilot, "escape", "escape")
        assert "RunScreen" == type(viewer.app.screen).__name__


async def test_a_failure_is_one_key_away() -> None:
    viewer = Viewer(failed())
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "exclamation_mark")

    assert "the tool has no answer [TL203]" in shown
    assert "help: try another tool" in shown


async def test_a_cancel_is_sent_only_when_it_is_confirmed() -> None:
    control = NotedControl()
    viewer = Viewer(running(), control)
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn(pilot)
        assert "flowforge resume 0630-1200-abcdef" in await viewer.press(pilot, "C")
        assert isinstance(viewer.app.screen, ConfirmDialog)
        await viewer.press(pilot, "enter")
        assert [] == control.orders
        await viewer.press(pilot, "C", "y")

    assert [("cancel", "", "")] == control.orders


async def test_the_chosen_step_is_cancelled_alone_once_it_is_confirmed() -> None:
    control = NotedControl()
    viewer = Viewer(running(), control)
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn(pilot)
        await viewer.press(pilot, "c")
        assert isinstance(viewer.app.screen, RunScreen), "angles has ended"
        assert "Cancel explore?" in await viewer.press(pilot, "down", "c")
        assert "4 steps of it are stopped" in viewer.text()
        await viewer.press(pilot, "escape")
        assert "Cancel explore[0]/draft?" in await viewer.press(pilot, "down", "c")
        await viewer.press(pilot, "y")

    assert [("cancel step", "explore[0]/draft", "")] == control.orders


async def test_limits_are_shown_changed_and_confirmed_where_they_end_the_run() -> None:
    control = NotedControl()
    viewer = Viewer(running(), control)
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "L")
        assert "writing now  2, no limit" in shown
        assert "tokens       338, at most 500" in shown
        await viewer.press(pilot, "enter", "1", "enter")
        await viewer.press(pilot, "L", "down", "enter", *"many", "enter")
        assert "no limit: 'many'" in viewer.told()
        shown = await viewer.press(pilot, "L", "down", "enter", *"300", "enter")
        assert "That much is used already: end the run?" in shown
        await viewer.press(pilot, "escape")
        await viewer.press(pilot, "L", "down", "down", "enter", *"2m", "enter")
        await viewer.press(pilot, "L", "down", "enter", *"none", "enter")

    told = [("concurrency", "1"), ("max_time_s", "120.0"), ("max_tokens", "None")]
    assert [("limits", *one) for one in told] == control.orders


class NotedBegin:
    """Begins nothing, and notes what it was to begin."""

    def __init__(self, begun: Detached | NotBegun) -> None:
        self.begun = begun
        self.asked: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> Detached | NotBegun:
        self.asked.append([*arguments])
        return self.begun


async def test_what_failed_is_tried_again_or_a_new_run_begins_from_the_chosen_step() -> None:
    begin = NotedBegin(Detached("0630-1200-abcdef", "log"))
    viewer = Viewer(failed(), begin=begin)
    viewer.source.link = "recorded"
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "r")
        assert "resume this run: it tries again what failed" in shown
        await viewer.press(pilot, "enter")
        await viewer.app.workers.wait_for_complete()
        shown = await viewer.press(pilot, "r")
        assert "a new run from angles on" in shown
        await viewer.press(pilot, "down", "enter")
        await viewer.app.workers.wait_for_complete()

    name = "0630-1200-abcdef"
    assert [["resume", name], ["rerun", name, "--from", "angles"]] == begin.asked


async def test_a_run_that_cannot_begin_again_says_why() -> None:
    begin = NotedBegin(NotBegun(3, "error[WF702]: [completed] steps were changed"))
    viewer = Viewer(failed(), begin=begin)
    viewer.source.link = "recorded"
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn(pilot)
        await viewer.press(pilot, "r", "enter")
        await viewer.app.workers.wait_for_complete()
        await pilot.pause()

    assert "error[WF702]: [completed] steps were changed" in viewer.told()


async def test_a_step_that_runs_is_not_run_again() -> None:
    viewer = Viewer(running(), NotedControl(), begin=NotedBegin(NotBegun(1, "")))
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn(pilot)
        await viewer.press(pilot, "down", "r")
        assert isinstance(viewer.app.screen, RunScreen)

    assert "choose a step that has ended: a run is run again from there" in viewer.told()


async def test_space_pauses_and_goes_on() -> None:
    control = NotedControl()
    viewer = Viewer(running(), control)
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn(pilot)
        await viewer.press(pilot, "space")
        await viewer.press(pilot, "space")

    assert [("pause", "", ""), ("go on", "", "")] == control.orders


async def test_a_question_is_answered_by_a_choice() -> None:
    control = NotedControl()
    viewer = Viewer(asking(), control)
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        assert "? 1 to answer" in await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "a")
        assert "gate: Publish the report?" in shown
        assert "it matters" in shown
        await viewer.press(pilot, "down", "enter")

    assert [("answer", "gate", "no")] == control.orders


async def test_lines_that_are_pasted_and_joined_letters_are_in_the_answer() -> None:
    control = NotedControl()
    asked = StepAsked("gate", "Which?", (), None)
    viewer = Viewer(events_of(StepStarted("gate", "ask"), asked), control)
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn_with(pilot, "? 1 to answer")
        await viewer.press(pilot, "a")
        field = viewer.app.screen.query_one(LineField)
        field.post_message(Paste("one\ntwo 👩"))
        field.post_message(Key("zero_width_joiner", "\u200d"))
        await viewer.press(pilot, "x", "enter")

    assert [("answer", "gate", "one two 👩\u200dx")] == control.orders


async def test_of_two_questions_the_chosen_one_is_answered() -> None:
    control = NotedControl()
    first = asking()
    asked = StepAsked("tone", "Which tone?", ("warm", "dry"), None)
    second = events_of(StepStarted("tone", "ask"), asked, first=len(first))
    viewer = Viewer([*first, *second], control)
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn_with(pilot, "? 2 to answer")
        await viewer.press(pilot, "G")
        assert "tone: Which tone?" in await viewer.press(pilot, "a")
        await viewer.press(pilot, "enter")

    assert [("answer", "tone", "warm")] == control.orders


async def test_the_time_of_a_run_that_waits_is_right_when_it_is_opened_late() -> None:
    viewer = Viewer(asking())
    viewer.opened.begun_at = time.time() - 3_600
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn_with(pilot, "running 1:0")

        assert 0 == viewer.screen.view.tokens_per_s()


async def test_a_run_without_control_says_that_it_can_only_be_watched() -> None:
    viewer = Viewer(asking())
    async with viewer.app.run_test(size=(100, 30)) as pilot:
        await viewer.drawn(pilot)
        for key in ("c", "C", "space", "a", "r"):
            await viewer.press(pilot, key)
            assert isinstance(viewer.app.screen, RunScreen)
        assert 5 == len(viewer.told())


async def test_time_goes_back_and_on_and_to_now() -> None:
    events = done()
    viewer = Viewer(events)
    async with viewer.app.run_test(size=(160, 40)) as pilot:
        assert "✓ done" in await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "comma")
        assert "● running" in shown
        assert f"event {len(events) - 1} of {len(events)}" in shown
        shown = await viewer.press(pilot, *["less_than_sign"] * 5)
        assert "The cost of it." not in shown
        assert "✓ done" in await viewer.press(pilot, "l")
        await viewer.press(pilot, "t")
        assert isinstance(viewer.app.screen, LineDialog)
        shown = await viewer.press(pilot, "1", "enter")
        assert "event 3 of" in shown
        assert "explore" not in shown.replace("event 3", "")
        assert "event 4 of" in await viewer.press(pilot, "full_stop")


async def test_a_search_finds_what_steps_wrote() -> None:
    viewer = Viewer(running())
    async with viewer.app.run_test(size=(120, 30)) as pilot:
        await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "slash", *"bicycle", "enter")
        assert "explore[1]/draft  The cost of [red]a 漢字 bicycle" in shown
        assert "continues angles" in await viewer.press(pilot, "enter")


def written(folder: Path, suffix: str) -> list[tuple[str, str, int]]:
    """Name, text and permissions of the files that were written."""
    files = folder.glob(f"*/*{suffix}")
    return [(file.name, file.read_text(), file.stat().st_mode & 0o777) for file in files]


async def test_texts_are_copied_to_the_terminal_and_into_a_file(own_folder: Path) -> None:
    viewer = Viewer(done())
    async with viewer.app.run_test(size=(120, 30)) as pilot:
        await viewer.drawn(pilot)
        await viewer.press(pilot, "y")

        assert '["Expenses", "Distance"]' == viewer.app.clipboard
        (file,) = written(own_folder, ".txt")
        assert ("angles.txt", viewer.app.clipboard, 0o600) == file


async def test_an_export_holds_the_events_up_to_what_is_seen(own_folder: Path) -> None:
    events = done()
    viewer = Viewer(events)
    async with viewer.app.run_test(size=(120, 30)) as pilot:
        await viewer.drawn(pilot)
        await viewer.press(pilot, "comma", "comma", "x")

    ((_, text, _),) = written(own_folder, ".jsonl")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [event.seq for event in events[:-2]] == [line["seq"] for line in lines]
    ((_, screen, _),) = written(own_folder, ".svg")
    assert screen.startswith("<svg")


async def test_steps_of_one_state_are_left_and_what_is_folded_opens() -> None:
    viewer = Viewer(failed())
    async with viewer.app.run_test(size=(120, 30)) as pilot:
        await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "backslash")
        tree = viewer.screen.query_one("#steps", LineList)
        assert "failed" in shown
        assert ["explore", "explore[1]/draft"] == [line.key for line in tree.lines]
        await viewer.press(pilot, "backslash", "backslash", "backslash")
        await viewer.press(pilot, "home", "down", "o")
        assert ["angles", "explore"] == [line.key for line in tree.lines]


async def test_a_panel_is_zoomed_and_back() -> None:
    viewer = Viewer(running())
    async with viewer.app.run_test(size=(120, 30)) as pilot:
        await viewer.drawn(pilot)
        await viewer.press(pilot, "5", "z")
        assert "events" == getattr(viewer.screen.maximized, "id", None)
        await viewer.press(pilot, "z")
        assert viewer.screen.maximized is None


async def test_narrow_screens_show_the_cache_where_the_events_were() -> None:
    viewer = Viewer(running())
    async with viewer.app.run_test(size=(80, 24)) as pilot:
        assert "KV cache" not in await viewer.drawn(pilot)
        assert "3 KV cache" in await viewer.press(pilot, "3")
        assert "5 Events" in await viewer.press(pilot, "5")


async def test_events_are_followed_at_any_size_until_the_user_moves_up() -> None:
    viewer = Viewer(running())
    async with viewer.app.run_test(size=(120, 36)) as pilot:
        await viewer.drawn(pilot)
        await pilot.resize_terminal(80, 24)
        await viewer.drawn_with(pilot, "explore[2]/draft: started")

        await pilot.press("5", "up")
        events = viewer.screen.query_one("#events", LineList)
        events.go_to_line(0)
        viewer.source.give(events_of(StepStarted("later", "gen"), first=60))
        assert "analyst: run started" in await viewer.drawn_with(pilot, "later  reading")
        await pilot.press("end")
        await viewer.drawn_with(pilot, "later: started")


async def test_what_is_cut_has_a_mark() -> None:
    name = "a_step_with_a_name_that_is_longer_than_the_panel"
    viewer = Viewer([*asking(), *events_of(StepStarted(name, "gen"), first=60)])
    async with viewer.app.run_test(size=(60, 20)) as pilot:
        header, *rows = (await viewer.drawn(pilot)).splitlines()

    assert "? 1 to answer" in header and header.rstrip().endswith("…")
    (row,) = (row for row in rows if name[:16] in row and row.startswith("┃"))
    assert "…┃" in row


async def test_the_cache_shows_who_shares_what() -> None:
    viewer = Viewer(done())
    async with viewer.app.run_test(size=(120, 30)) as pilot:
        await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "K")

    assert "shared 52  own 8  written 12" in shown
    assert "└─ ✓ explore[2]/draft" in shown


async def test_the_pages_are_seen_as_they_were_at_any_time() -> None:
    viewer = Viewer(paged())
    async with viewer.app.run_test(size=(120, 30)) as pilot:
        await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "K")
        assert "Map: 1 cell = 1 page" in shown
        assert "▓▓▓▓▓▓░░░░░░ " in shown
        assert "cached: of none, for later" in shown
        await viewer.press(pilot, "escape", "t", *"4", "enter")
        shown = await viewer.press(pilot, "K")
        assert "▓▓▓▓▓▓███ " in shown
        assert "shared 6  tree 0  private 3  cached 0  free 55" in shown


async def test_the_map_is_above_the_tree_where_there_is_no_room_beside_it() -> None:
    viewer = Viewer(paged())
    async with viewer.app.run_test(size=(80, 40)) as pilot:
        await viewer.drawn(pilot)
        lines = (await viewer.press(pilot, "K")).split("\n")

    (at,) = (idx for idx, line in enumerate(lines) if "Map: 1 cell" in line)
    (under,) = (idx for idx, line in enumerate(lines) if "Prefixes: each" in line)
    assert at < under


async def test_the_help_lists_every_key_with_its_id() -> None:
    viewer = Viewer(running())
    async with viewer.app.run_test(size=(120, 60)) as pilot:
        await viewer.drawn(pilot)
        shown = await viewer.press(pilot, "question_mark")

    ids = {binding.id for binding in RunScreen.BINDINGS if isinstance(binding, Binding)}
    assert len(ids) > 20
    assert set() == {name for name in ids if str(name) not in shown}


async def test_keys_are_changed_by_a_keymap() -> None:
    source = GivenSource(failed())
    app = ViewerApp(run=OpenedRun("r", source), keymap={"run.failure": "F"})
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause(0.2)
        await pilot.press("F")
        await pilot.pause()
        assert isinstance(app.screen, LinesPage)


class LostSource(GivenSource):
    def poll(self, budget_s: float) -> Batch:
        if self.waiting:
            return super().poll(budget_s)
        raise EngineError("EN704", "the journal cannot be read: input/output error")


async def test_events_that_cannot_be_read_any_more_are_told_and_what_is_known_stays() -> None:
    app = ViewerApp(run=OpenedRun("r", LostSource(running())))
    viewer = Viewer([])
    viewer.app = app
    async with app.run_test(size=(120, 30)) as pilot:
        await viewer.drawn(pilot)
        shown = await viewer.drawn(pilot)

    assert "connection lost" in shown
    assert "state unknown" in shown
    assert "running" not in shown.splitlines()[0]
    assert "explore" in shown


async def test_a_chosen_container_shows_what_is_written_in_it() -> None:
    branches = [StepStarted(f"explore[{idx}]/draft", "gen") for idx in range(12)]
    begun = (RunStarted("w", {}), StepStarted("intro", "gen"), StepStarted("explore", "for"))
    texts = (StepText("intro", "an introduction", 3), StepText("explore[4]/draft", "of four", 2))
    usage = Usage(9, 9, 0, 2, 0.1, 0.2)
    ends = [StepFinished("explore[4]/draft", "of four", "stop", usage)]
    viewer = Viewer(events_of(*begun, *branches, *texts, *ends))
    async with viewer.app.run_test(size=(80, 24)) as pilot:
        await viewer.drawn(pilot)
        await pilot.press("down")
        await viewer.drawn_with(pilot, "explore[0]/draft  reading the prompt")

        viewer.source.give(events_of(StepFinished("explore[0]/draft", "of none"), first=60))
        await viewer.drawn_with(pilot, "explore[1]/draft  reading the prompt")


async def test_panes_do_not_move_while_their_steps_write() -> None:
    viewer = Viewer(running())
    async with viewer.app.run_test(size=(130, 30)) as pilot:
        await viewer.drawn(pilot)
        before = [pane.path for pane in viewer.screen.query(StreamPane) if pane.display]
        viewer.source.give(events_of(StepText("explore[2]/draft", "more", 1), first=60))
        await viewer.drawn(pilot)
        after = [pane.path for pane in viewer.screen.query(StreamPane) if pane.display]

    assert ["explore[0]/draft", "explore[1]/draft"] == before == after


async def test_leaving_the_viewer_closes_its_source() -> None:
    viewer = Viewer(running())
    async with viewer.app.run_test() as pilot:
        await viewer.drawn(pilot)
        await pilot.press("q")

    assert viewer.source.is_closed
