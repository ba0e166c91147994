"""The runs of a journal: those that go on first, then the newest; typed words filter them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from flowforge.errors import FlowForgeError
from flowforge.tui.dialogs import LineDialog
from flowforge.tui.key_help import help_lines
from flowforge.tui.key_line import KeyLine
from flowforge.tui.lines import LineList, plain_line
from flowforge.tui.pages import LinesPage
from flowforge.tui.panels import run_lines
from flowforge.view.sources import listings

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from flowforge.journal.reader import JournalReader

REFRESH_S = 1.0


class RunsScreen(Screen[None]):
    """Shows the runs, looked up anew every second."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "Help", id="runs.help"),
        Binding("enter", "open", "Open", id="runs.open"),
        Binding("slash", "filter", "Filter", id="runs.filter"),
        Binding("q", "app.quit", "Quit", id="runs.quit"),
    ]

    def __init__(
        self, journal: JournalReader, open_run: Callable[[str], None], *, is_ascii: bool
    ) -> None:
        """open_run: shows a run by its id."""
        super().__init__()
        self._journal = journal
        self._open_run = open_run
        self._is_ascii = is_ascii
        self._contains = ""

    def compose(self) -> ComposeResult:
        """The list and the keys."""
        yield LineList(has_cursor=True, id="page")
        yield KeyLine()

    def on_mount(self) -> None:
        """Begin to show."""
        self.query_one(LineList).focus()
        self._draw()
        self.set_interval(REFRESH_S, self._draw)

    def on_screen_resume(self) -> None:
        """Show what changed meanwhile."""
        self._draw()

    def _draw(self) -> None:
        if not self.is_current:
            return
        try:
            runs = listings(self._journal)
        except FlowForgeError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        going_on = sum(one.state == "running" for one in runs)
        lines = self.query_one(LineList)
        lines.border_title = f"Runs: {going_on} going on, {len(runs) - going_on} recorded"
        lines.border_subtitle = self._contains.replace("[", r"\[")
        shown = run_lines(runs, is_ascii=self._is_ascii, contains=self._contains)
        if not runs:
            shown = [
                plain_line("No runs yet. Begin one in another terminal:"),
                plain_line(""),
                plain_line("  flowforge run FILE"),
            ]
        elif not shown:
            shown = [plain_line(f"no run matches {self._contains!r}")]
        lines.show(shown)

    def action_open(self) -> None:
        """Open the chosen run."""
        self.query_one(LineList).action_open()

    def on_line_list_opened(self, event: LineList.Opened) -> None:
        """Show a run."""
        self._open_run(event.key)

    def action_filter(self) -> None:
        """Ask for words that runs must contain."""

        def filter_by(words: str | None) -> None:
            self._contains = self._contains if words is None else words
            self._draw()

        self.app.push_screen(LineDialog("Show runs that contain"), filter_by)

    def action_help(self) -> None:
        """Show every key."""
        focused = self.focused
        self.app.push_screen(LinesPage("Keys", lambda _: help_lines(self, focused)))
