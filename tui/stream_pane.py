"""What one step is writing: the end of its text, folded to the width, following as it grows.

Text is folded as it comes, a batch at a time, and only lines in sight are drawn: the cost of a
frame does not grow with the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.binding import Binding, BindingType

from flowforge.tui.line_view import LineView, fitted
from flowforge.view.printable import folded, printable, without_loose_joiners

if TYPE_CHECKING:
    from textual import events

    from flowforge.view.run_view import RunView

MAX_LINES = 4_000


class StreamPane(LineView[str]):
    """Shows one step of a view at a time; `show` is called for each frame."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="stream.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="stream.down"),
        Binding("pageup", "move_page(-1)", "Page up", show=False, id="stream.page_up"),
        Binding("pagedown", "move_page(1)", "Page down", show=False, id="stream.page_down"),
        Binding("f", "follow", "Follow", id="stream.follow"),
        Binding("end,G", "follow", "Follow", show=False, id="stream.end"),
    ]

    def __init__(self, id: str = "") -> None:
        super().__init__(id)
        self.path: str = ""
        self.is_following: bool = True
        self._view: RunView | None = None
        self._seen = 0
        self._revision = -1
        self._rows: list[str] = []
        self._width = 0
        self._num_new = 0
        self._titles = ("", "")

    # -- text --------------------------------------------------------------------------------------

    def show(self, view: RunView, path: str) -> None:
        """Show a step of a view: what it has written since the last time is added."""
        text = view.texts.get(path)
        end = 0 if text is None else text.end
        is_other = view is not self._view or path != self.path
        width = self.scrollable_content_region.width
        # A recorded step has its text as its value alone, which is there at its end.
        is_told = text is None and view.steps_revision != self._revision
        if is_other or is_told or width != self._width or end < self._seen:
            self._fold_anew(view, path, width)
        elif text is not None and end > self._seen:
            self._add(text.since(self._seen))
            self._seen = end

    @property
    def rows(self) -> list[str]:
        """The folded lines that are kept."""
        return self._rows

    def _fold_anew(self, view: RunView, path: str, width: int) -> None:
        is_other = path != self.path or view is not self._view
        self._view, self.path, self._width = view, path, width
        self._revision = view.steps_revision
        text = view.texts.get(path)
        whole = view.text_of(path) if path else ""
        if text is not None and not is_other and not self.is_following:
            before = whole[: len(whole) - len(text.since(self._seen))]
            self._num_new += _num_rows(whole, width) - _num_rows(before, width)
        self._seen = text.end if text is not None else 0
        rows = [*folded(printable(whole), max(2, width))][-MAX_LINES:] if whole else []
        if rows == self._rows and not is_other:
            return
        self._rows = rows
        if is_other:
            self.is_following = True
        self._grown()

    def _add(self, text: str) -> None:
        before = len(self._rows)
        last = self._rows.pop() if self._rows else ""
        # Only the last row can still change; those before it are folded for good.
        self._rows += folded(last + printable(text), max(2, self._width))
        self._num_new += 0 if self.is_following else len(self._rows) - before
        excess = len(self._rows) - MAX_LINES
        if excess > 0:
            del self._rows[:excess]
            if not self.is_following:
                self.go_to_line(self.scroll_offset.y - excess)
        self._grown(first=0 if excess > 0 else max(0, before - 1))

    def _grown(self, first: int = 0) -> None:
        """Show the rows. first: those before it are as they were."""
        self.grow_to(self._width, len(self._rows))
        if self.is_following:
            self._num_new = 0
            self.go_to_line(len(self._rows) - self.height_in_sight)
        if not first:
            self.refresh()
            return
        top = self.scroll_offset.y
        first, end = max(first, top), min(len(self._rows), top + self.height_in_sight)
        if first < end:
            self.refresh_lines(first, end - first)

    def set_title(self, title: str) -> None:
        """Say above the text whose it is, and below whether it is followed."""
        new = f"{self._num_new} new lines, f to follow"
        titles = (title, "follow" if self.is_following else new)
        if titles != self._titles:
            self._titles = titles
            # Titles are read as markup.
            self.border_title = printable(title).replace("[", r"\[")
            self.border_subtitle = titles[1]

    # -- keys --------------------------------------------------------------------------------------

    def action_move(self, num: int) -> None:
        """Scroll; going up ends following, and going to the end begins it."""
        if num < 0:
            self.is_following = False
            self.set_title(self._titles[0])
        self.scroll_relative(y=num, animate=False, force=True)
        if num > 0 and self.scroll_offset.y >= len(self._rows) - self.height_in_sight:
            self.action_follow()

    def action_move_page(self, num: int) -> None:
        """By as many lines as are in sight."""
        self.action_move(num * max(1, self.height_in_sight - 1))

    def action_follow(self) -> None:
        """Go to the end and stay there."""
        self.is_following = True
        self._grown()
        self.set_title(self._titles[0])

    def on_mouse_scroll_up(self) -> None:
        """Who scrolls up wants to read: do not follow any more."""
        self.is_following = False

    def on_resize(self, event: events.Resize) -> None:
        """Fold to the new width."""
        if self._view is not None:
            self._fold_anew(self._view, self.path, self.scrollable_content_region.width)
            self._grown()

    # -- drawing -----------------------------------------------------------------------------------

    def content_at(self, y: int) -> str:
        """The words of a line."""
        idx = self.scroll_offset.y + y
        return self._rows[idx] if idx < len(self._rows) else ""

    def segments_of(self, content: str, width: int) -> list[Segment]:
        """Plain words."""
        shown = without_loose_joiners(content)
        segments = [Segment(shown, self.base)] if shown else []
        return fitted(segments, width - cell_len(shown), self.base)


def _num_rows(text: str, width: int) -> int:
    return sum(1 for _ in folded(printable(text), max(2, width)))
