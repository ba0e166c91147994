"""What draws lines of its own and grows: the lists and the texts of the viewer.

While a run writes, drawing is most of what the viewer does. So a line is drawn once and kept for
as long as it is in sight, wherever it moves, together with the border at its sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size, Spacing
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    Look = tuple[Hashable, ...]

Drawn = TypeVar("Drawn", bound="Hashable")

_BORDER = Spacing(1, 1, 1, 1)


class LineView(ScrollView, Generic[Drawn], can_focus=True):
    """Scrolls lines. `content_at` says what one shows, `segments_of` draws that on `base`."""

    # As Textual has it, the whole screen is laid out again with each line that is added.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    def __init__(self, id: str = "") -> None:
        super().__init__(id=id or None)
        self.base: Style = Style.null()
        self._look: Look = ()
        self._sides: tuple[list[Segment], list[Segment]] = ([], [])
        self._strips: dict[Drawn, Strip] = {}

    def content_at(self, y: int) -> Drawn:
        """All that a line in sight depends on. y: from the first one in sight."""
        raise NotImplementedError

    def segments_of(self, content: Drawn, width: int) -> list[Segment]:
        """What was made by `content_at`, drawn exactly `width` cells wide."""
        raise NotImplementedError

    # -- size and place ----------------------------------------------------------------------------

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

    # -- drawing -----------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """See `Widget`."""
        self.base = self.rich_style
        width = self.scrollable_content_region.width
        return Strip(self.segments_of(self.content_at(y), width), width)

    def render_lines(self, crop: Region) -> list[Strip]:
        """See `Widget`. What Textual makes of a line is made once for a line, not once a frame."""
        width, height = self.outer_size
        is_whole = crop == self.outer_size.region and self.styles.gutter == _BORDER
        if not is_whole or height < 4 or width < 3:
            return super().render_lines(crop)
        self._look_again()
        top = super().render_lines(Region(0, 0, width, 1))
        bottom = super().render_lines(Region(0, height - 1, width, 1))
        return [*top, *self._inner_strips(height - 2), *bottom]

    def _look_again(self) -> None:
        """Forget what is drawn where it would look another way now."""
        self.base = self.rich_style
        width = self.scrollable_content_region.width
        filters = tuple(self.get_line_filters())
        look = (self.base, self.outer_size, width, self.styles.border, filters, self.app.theme)
        if look != self._look:
            self._look, self._strips = look, {}
            self._styles_cache.clear()
            (side,) = super().render_lines(Region(0, 1, self.outer_size.width, 1))
            end = self.outer_size.width
            self._sides = [*side.crop(0, 1)], [*side.crop(end - 1, end)]

    def _inner_strips(self, num_lines: int) -> Iterator[Strip]:
        known, self._strips = self._strips, {}
        width = self.scrollable_content_region.width
        whole = self.outer_size.width
        left, right = self._sides
        # The scrollbar is drawn over these cells.
        room = fitted([], whole - 2 - width, self.base)
        filters, background = self.get_line_filters(), self.background_colors[1]
        for y in range(num_lines):
            content = self.content_at(y)
            strip = self._strips.get(content) or known.get(content)
            if strip is None:
                segments = [*self.segments_of(content, width), *room]
                for one in filters:
                    segments = one.apply(segments, background)
                strip = Strip([*left, *segments, *right], whole)
            self._strips[content] = strip
            yield strip


def fitted(segments: list[Segment], missing: int, style: Style) -> list[Segment]:
    """With so many cells more at the end, or less."""
    if missing < 0:
        strip = Strip(segments)
        return [*strip.crop(0, strip.cell_length + missing)]
    return [*segments, Segment(" " * missing, style)] if missing else segments
