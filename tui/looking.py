"""The keys that look at a run: at a step, through its texts, at another time, out of the viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen

from flowforge.errors import FlowForgeError
from flowforge.runtime.event_json import event_as_json, safe_json
from flowforge.tui.copying import copy, write_private
from flowforge.tui.dialogs import LineDialog
from flowforge.tui.key_help import help_lines
from flowforge.tui.kv_panels import prefix_lines
from flowforge.tui.lines import LineList
from flowforge.tui.pages import LinesPage
from flowforge.tui.panels import detail_lines, found_lines
from flowforge.tui.stream_pane import StreamPane
from flowforge.view.step_detail import detail_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.journal.records import WorkRow
    from flowforge.tui.lines import Line
    from flowforge.tui.opened_run import OpenedRun
    from flowforge.view.run_view import RunView
    from flowforge.view.timeline import Timeline


class Looking(Screen[None]):
    """Part of `RunScreen`, which owns the attributes."""

    opened: OpenedRun
    timeline: Timeline
    view: RunView
    place: int | None
    is_ascii: bool
    opened_paths: set[str]
    _drawn: object
    _works_failure: str = ""

    # -- steps -------------------------------------------------------------------------------------

    def open_step(self, path: str) -> None:
        """Show a step in detail; a branch, which is none itself, is opened in the tree."""
        if path not in self.view.picture.steps:
            self.opened_paths.add(path)
            self._drawn = None
            return

        ended: dict[str, Sequence[WorkRow]] = {}

        def works_at(path: str) -> Sequence[WorkRow]:
            if path in ended:
                return ended[path]
            works = self._works_at(path)
            step = self.view.picture.steps.get(path)
            if step is not None and step.ended_s is not None:
                ended[path] = works
            return works

        def make_lines(width: int) -> Sequence[Line]:
            return detail_lines(detail_of(self.view, path, works_at), width)

        page = LinesPage(path, make_lines, text=lambda: self.view.text_of(path))
        self.app.push_screen(page)

    def _works_at(self, path: str) -> Sequence[WorkRow]:
        try:
            return self.opened.works_at(path)
        except FlowForgeError as error:
            if self._works_failure != str(error):
                self._works_failure = str(error)
                self.notify(str(error), severity="error", markup=False)
            return ()

    @property
    def _chosen_path(self) -> str:
        focused = self.focused
        if isinstance(focused, StreamPane):
            return focused.path
        return self.query_one("#steps", LineList).key

    def action_next_failure(self) -> None:
        """Open the newest failure."""
        failures = [step for step in self.view.failures if step.next_path is None]
        if not failures:
            self.notify("nothing has failed")
            return
        newest = max(failures, key=lambda step: step.ended_s or 0.0)
        self.query_one("#steps", LineList).choose(newest.path)
        self.open_step(newest.path)

    def action_kv(self) -> None:
        """Show who shares what in the KV cache."""
        page = LinesPage(
            "KV cache",
            lambda width: prefix_lines(self.view, width, is_ascii=self.is_ascii),
            has_cursor=True,
        )
        self.app.push_screen(page, self._open_if_chosen)

    def action_search(self) -> None:
        """Ask for words and show where steps wrote them."""

        def search(words: str | None) -> None:
            if words:
                page = LinesPage(
                    f"Search: {words}", lambda _: found_lines(self.view, words), has_cursor=True
                )
                self.app.push_screen(page, self._open_if_chosen)

        self.app.push_screen(LineDialog("Search in what steps wrote"), search)

    def _open_if_chosen(self, path: str | None) -> None:
        if path:
            self.open_step(path)

    def action_help(self) -> None:
        """Show every key, those of the panel with the focus first."""
        focused = self.focused
        page = LinesPage("Keys", lambda _: help_lines(self, focused))
        self.app.push_screen(page)

    # -- out of the viewer -------------------------------------------------------------------------

    def action_copy(self) -> None:
        """Copy what the chosen step wrote."""
        path = self._chosen_path
        text = self.view.text_of(path) if path else ""
        if text:
            copy(self.app, text, path)
        else:
            self.notify("the chosen step has written nothing to copy")

    def action_export(self) -> None:
        """Write the events up to what is seen as JSON lines, and the screen as SVG."""
        place = len(self.timeline) if self.place is None else self.place
        lines = [safe_json(event_as_json(event)) for event in self.timeline.events[:place]]
        events = write_private("\n".join([*lines, ""]), f"{self.opened.name}-events", ".jsonl")
        screen = write_private(self.app.export_screenshot(), f"{self.opened.name}-screen", ".svg")
        self.notify(f"written: {events} and {screen}", timeout=10, markup=False)

    # -- time --------------------------------------------------------------------------------------

    def _go_to(self, place: int) -> None:
        """See the run as it was; the last place of a run is now."""
        self.place = max(0, min(place, len(self.timeline)))
        self.view = self.timeline.view_at(self.place)
        self._drawn = None

    @property
    def _place_now(self) -> int:
        return len(self.timeline) if self.place is None else self.place

    def action_step_time(self, num: int) -> None:
        """One event back or on."""
        self._go_to(self._place_now + num)

    def action_change_time(self, side: int) -> None:
        """To the change before or behind: an event that is not a text."""
        if side < 0:
            self._go_to(self.timeline.previous_change(self._place_now))
        else:
            self._go_to(self.timeline.next_change(self._place_now))

    def action_go_to_time(self) -> None:
        """Ask for a time since the run's start."""

        def go(text: str | None) -> None:
            if text is None:
                return
            seconds = seconds_of_clock(text)
            if seconds is None:
                self.notify(
                    f"no time: {text!r}; say it as 42 or 1:02", severity="warning", markup=False
                )
            else:
                self._go_to(self.timeline.place_at(seconds))

        self.app.push_screen(LineDialog("Go to a time, for example 42 or 1:02"), go)

    def action_live(self) -> None:
        """Back to now."""
        self.place = None
        self.view = self.timeline.view_at(len(self.timeline))
        self._drawn = None


def seconds_of_clock(text: str) -> float | None:
    """'42', '1:02' or '1:00:02' in seconds; None for anything else."""
    parts = text.strip().split(":")
    if len(parts) > 3:
        return None
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        return None
    if any(not 0 <= number < float("inf") for number in numbers):
        return None
    seconds = 0.0
    for number in numbers:
        seconds = seconds * 60 + number
    return seconds
