"""Screens of lines: a step in detail, the KV view, what a search found, the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Markdown

from flowforge.tui.key_line import KeyLine
from flowforge.tui.lines import LineList
from flowforge.view.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult

    from flowforge.tui.lines import Line

REFRESH_S = 0.5


class LinesPage(Screen[str | None]):
    """Lines that are made anew twice a second; closed with the key of the one that is opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back", id="page.leave"),
        Binding("y", "copy", "Copy", id="page.copy"),
        Binding("m", "markdown", "Markdown", id="page.markdown"),
    ]

    def __init__(
        self,
        title: str,
        make_lines: Callable[[int], Sequence[Line]],
        *,
        text: Callable[[], str] | None = None,
        has_cursor: bool = False,
    ) -> None:
        """make_lines: for a width in cells. text: for `y` and `m`; the lines if None."""
        super().__init__()
        self._title = title
        self._make_lines = make_lines
        self._text = text
        self._has_cursor = has_cursor

    def compose(self) -> ComposeResult:
        """The lines and the keys."""
        lines = LineList(id="page", has_cursor=self._has_cursor)
        lines.border_title = printable(self._title).replace("[", r"\[")
        yield lines
        yield KeyLine()

    def on_mount(self) -> None:
        """Begin to show."""
        self.query_one(LineList).focus()
        self.call_after_refresh(self._draw)
        self.set_interval(REFRESH_S, self._draw)

    def _draw(self) -> None:
        lines = self.query_one(LineList)
        lines.show(self._make_lines(lines.scrollable_content_region.width))

    def on_resize(self) -> None:
        """Fold to the new width."""
        self.call_after_refresh(self._draw)

    def on_line_list_opened(self, event: LineList.Opened) -> None:
        """Close with what was opened."""
        self.dismiss(event.key)

    def _shown_text(self) -> str:
        if self._text is not None:
            return self._text()
        return "\n".join(line.text for line in self.query_one(LineList).lines)

    def action_copy(self) -> None:
        """Give the text to the clipboard."""
        from flowforge.tui.copying import copy

        copy(self.app, self._shown_text(), self._title)

    def action_markdown(self) -> None:
        """Show the text as Markdown."""
        self.app.push_screen(MarkdownPage(self._title, self._shown_text()))

    def action_leave(self) -> None:
        """Close."""
        self.dismiss(None)


class MarkdownPage(Screen[None]):
    """A text rendered as Markdown, links and control codes left out of its power."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,m", "leave", "Back", id="markdown.leave")
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """The rendered text and the keys."""
        with VerticalScroll(id="page") as scroll:
            scroll.border_title = printable(self._title).replace("[", r"\[")
            yield Markdown(printable(self._text), open_links=False)
        yield KeyLine()

    def on_mount(self) -> None:
        """Let keys scroll."""
        self.query_one(VerticalScroll).focus()

    def action_leave(self) -> None:
        """Close."""
        self.dismiss(None)
