"""A list of styled lines that draws only those in sight, and may have one that is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from flowforge.tui.line_view import LineView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events

CURSOR_STYLE = "reverse"


@dataclass(frozen=True, slots=True)
class Line:
    """Pieces of text, each with a style. key: what the line stands for; "" of none.

    Texts are printable already and hold no line feed; they are never read as markup.
    """

    pieces: tuple[tuple[str, str], ...]
    key: str = ""

    @property
    def text(self) -> str:
        """The line without its styles."""
        return "".join(text for text, _ in self.pieces)


def plain_line(text: str, style: str = "", key: str = "") -> Line:
    """A line of one piece."""
    return Line(((text, style),), key)


_NO_LINE = Line(())


@dataclass(frozen=True, slots=True)
class _Shown:
    line: Line
    x: int = 0
    is_chosen: bool = False
    has_keys: bool = False


class LineList(LineView[_Shown]):
    """Shows lines. With a cursor, one that has a key is chosen, and stays when lines move."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="lines.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="lines.down"),
        Binding("pageup", "move_page(-1)", "Page up", show=False, id="lines.page_up"),
        Binding("pagedown", "move_page(1)", "Page down", show=False, id="lines.page_down"),
        Binding("home,g", "move_to_end(-1)", "Top", show=False, id="lines.top"),
        Binding("end,G", "move_to_end(1)", "Bottom", show=False, id="lines.bottom"),
        Binding("enter", "open", "Open", show=False, id="lines.open"),
    ]

    @dataclass
    class Opened(Message):
        """A line was opened, by Enter or by a click on the chosen line."""

        lines: LineList
        key: str

    @dataclass
    class Chosen(Message):
        """Another line was chosen."""

        lines: LineList
        key: str

    def __init__(self, *, has_cursor: bool = False, follows: bool = False, id: str = "") -> None:
        """follows: stay at the end as lines are added, until the user moves up."""
        super().__init__(id)
        self._lines: Sequence[Line] = ()
        self._has_cursor = has_cursor
        self._cursor = 0
        self.is_following: bool = follows
        self._follows = follows

    # -- lines -------------------------------------------------------------------------------------

    @property
    def lines(self) -> Sequence[Line]:
        """What is shown."""
        return self._lines

    @property
    def key(self) -> str:
        """The key of the chosen line; "" of none."""
        return self._lines[self._cursor].key if self._cursor < len(self._lines) else ""

    def show(self, lines: Sequence[Line]) -> None:
        """Show other lines. The chosen one stays chosen, if it is still there."""
        if lines == self._lines:
            return
        key = self.key
        self._lines = lines
        if self._has_cursor:
            self._cursor = self._index_of(key) if key else min(self._cursor, len(lines))
        width = max((sum(cell_len(text) for text, _ in line.pieces) for line in lines), default=0)
        self.grow_to(width, len(lines))
        if self.is_following:
            self.scroll_end(animate=False, force=True)
        self.refresh()

    def choose(self, key: str) -> bool:
        """Choose the line of a key and bring it into sight; whether there is one."""
        found = next((idx for idx, line in enumerate(self._lines) if line.key == key), None)
        if found is None:
            return False
        self._set_cursor(found)
        return True

    def _index_of(self, key: str) -> int:
        found = (idx for idx, line in enumerate(self._lines) if line.key == key)
        return next(found, min(self._cursor, max(0, len(self._lines) - 1)))

    def _set_cursor(self, idx: int) -> None:
        self._cursor = max(0, min(idx, len(self._lines) - 1))
        top, height = self.scroll_offset.y, self.height_in_sight
        if self._cursor < top:
            self.go_to_line(self._cursor)
        elif self._cursor >= top + height:
            self.go_to_line(self._cursor - height + 1)
        self.refresh()
        self.post_message(self.Chosen(self, self.key))

    # -- keys and mouse ----------------------------------------------------------------------------

    def action_move(self, num: int) -> None:
        """Choose another line, or scroll."""
        if self._has_cursor:
            self._set_cursor(self._cursor + num)
            self.is_following = self._follows and self._cursor == len(self._lines) - 1
        else:
            self._scroll_by(num)

    def action_move_page(self, num: int) -> None:
        """By as many lines as are in sight."""
        self.action_move(num * max(1, self.height_in_sight - 1))

    def action_move_to_end(self, side: int) -> None:
        """To the first or the last line."""
        self.action_move(side * max(1, len(self._lines)))

    def action_open(self) -> None:
        """Open the chosen line."""
        if self._has_cursor and self.key:
            self.post_message(self.Opened(self, self.key))

    def on_click(self, event: events.Click) -> None:
        """Choose the line under the mouse; open it if it is chosen."""
        offset = event.get_content_offset(self)
        if not self._has_cursor or offset is None:
            return
        idx = self.scroll_offset.y + offset.y
        if idx >= len(self._lines):
            return
        if idx == self._cursor:
            self.action_open()
        else:
            self._set_cursor(idx)

    def on_mouse_scroll_up(self) -> None:
        """Who scrolls up wants to read: do not follow any more."""
        self.is_following = False

    def _scroll_by(self, num: int) -> None:
        if num < 0:
            self.is_following = False
        self.scroll_relative(y=num, animate=False, force=True)
        if self._follows and num > 0 and self.scroll_offset.y >= self.max_scroll_y:
            self.is_following = True

    def on_resize(self) -> None:
        """Who follows sees the end at any size."""
        if self.is_following:
            self.scroll_end(animate=False, force=True)

    # -- drawing -----------------------------------------------------------------------------------

    def content_at(self, y: int) -> _Shown:
        """A line, from where it is seen on, and whether it is the chosen one."""
        idx = self.scroll_offset.y + y
        if idx >= len(self._lines):
            return _Shown(_NO_LINE)
        line = self._lines[idx]
        is_chosen = self._has_cursor and idx == self._cursor and bool(line.key)
        return _Shown(line, self.scroll_offset.x, is_chosen, is_chosen and self.has_focus)

    def segments_of(self, content: _Shown, width: int) -> list[Segment]:
        """The line in its styles, and in that of the cursor."""
        strip = Strip(
            [Segment(text, self.base + Style.parse(style)) for text, style in content.line.pieces]
        )
        if strip.cell_length > content.x + width > 0:
            # Nothing is cut without a mark.
            mark = Segment(">" if self.app.has_class("-ascii") else "…", self.base)
            strip = Strip([*strip.crop(content.x, content.x + width - 1), mark])
            strip = strip.extend_cell_length(width, self.base)
        else:
            strip = strip.crop_extend(content.x, content.x + width, self.base)
        if content.is_chosen:
            cursor = Style.parse(CURSOR_STYLE if content.has_keys else "underline")
            strip = strip.apply_style(cursor)
        return [*strip]
