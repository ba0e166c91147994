"""The keys that work where the user is, on one line.

Textual's Footer makes a widget for each key, anew at each change of the focus: while a run writes,
that took longer than all else that a key brings about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from textual import events
    from textual.screen import Screen


@dataclass(frozen=True, slots=True)
class _ShownKey:
    key: str
    display: str
    description: str

    @property
    def width(self) -> int:
        return cell_len(self.display) + cell_len(self.description) + 3


class KeyLine(Widget, can_focus=False):
    """Keys with what they do, as many as fit; a click on one is like pressing it."""

    ALLOW_SELECT: ClassVar[bool] = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-line--key", "key-line--description"}
    DEFAULT_CSS = """
    KeyLine {
        dock: bottom;
        height: 1;
        color: $footer-foreground;
        background: $footer-background;
        .key-line--key {
            color: $footer-key-foreground;
            background: $footer-key-background;
            text-style: bold;
        }
        .key-line--description {
            color: $footer-description-foreground;
            background: $footer-description-background;
        }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[_ShownKey] | None = None

    def on_mount(self) -> None:
        """Show others when others work."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def on_unmount(self) -> None:
        """Nothing is shown any more."""
        self.screen.bindings_updated_signal.unsubscribe(self)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        self._keys = None
        self.refresh()

    def _shown_keys(self) -> list[_ShownKey]:
        if self._keys is None:
            shown: dict[str, _ShownKey] = {}
            for _, binding, _, _ in self.screen.active_bindings.values():
                if binding.show and binding.action not in shown:
                    display = self.app.get_key_display(binding)
                    shown[binding.action] = _ShownKey(binding.key, display, binding.description)
            self._keys = [*shown.values()]
        return self._keys

    def render_line(self, y: int) -> Strip:
        """The line."""
        width, base = self.size.width, self.rich_style
        key_style = base + self.get_component_rich_style("key-line--key")
        description_style = base + self.get_component_rich_style("key-line--description")
        segments: list[Segment] = []
        room = width
        for one in self._shown_keys():
            room -= one.width
            if room < 0:
                break
            segments.append(Segment(f" {one.display} ", key_style))
            segments.append(Segment(f"{one.description} ", description_style))
        return Strip(segments).adjust_cell_length(width, base)

    def on_click(self, event: events.Click) -> None:
        """Press the key under the mouse."""
        at = 0
        for one in self._shown_keys():
            at += one.width
            if at > self.size.width:
                return
            if event.x < at:
                self.app.simulate_key(one.key)
                return
