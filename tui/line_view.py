"""What draws lines of its own and grows: the lists and the texts of the viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView

if TYPE_CHECKING:
    from textual.strip import Strip


class LineView(ScrollView, can_focus=True):
    """Scrolls lines that `render_line` draws, on `base`."""

    # As Textual has it, the whole screen is laid out again with each line that is added.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    def __init__(self, id: str = "") -> None:
        super().__init__(id=id or None)
        self.base: Style = Style.null()

    def grow_to(self, width: int, height: int) -> None:
        """So many cells and lines there are now."""
        size = Size(width, height)
        if size != self.virtual_size:
            self.virtual_size = size
            self._scroll_update(size)

    def go_to_line(self, y: int) -> None:
        """Show the lines from one on."""
        self.scroll_to(y=max(0, y), animate=False, force=True)

    @property
    def height_in_sight(self) -> int:
        """How many lines are in sight; at least one."""
        return max(1, self.scrollable_content_region.height)

    def render_lines(self, crop: Region) -> list[Strip]:
        """See `Widget`. The style is found once: it comes from all that this lies in."""
        self.base = self.rich_style
        return super().render_lines(crop)
