"""Which steps' texts are side by side: what runs comes first, and nothing moves while it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowforge.view.run_view import RunView


class StreamSlots:
    """Keeps each pane's step until its text is done and another one waits for the place."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._chosen = ""
        self._turned = 0

    def look_at(self, path: str) -> None:
        """A user has chosen a step: its text is in the first pane from now on."""
        self._chosen = path

    def turn(self, num: int) -> None:
        """Show other steps, by as many as there are panes."""
        self._turned += num

    def paths(self, view: RunView, num_panes: int, chosen: str) -> list[str]:
        """The steps of the panes from left to right, at most `num_panes`."""
        known = view.writers
        is_looked_at = self._chosen == chosen and self._chosen in view.picture.steps
        first = [self._chosen] if is_looked_at else []
        names = [*known]
        if self._turned and names:
            start = self._turned * num_panes % (len(names) + (-len(names)) % num_panes)
            self._paths = names[start : start + num_panes] or names[:num_panes]
            return self._paths
        running = [path for path in names if known[path].ended_s is None]
        kept = [path for path in self._paths if path in known and path not in first]
        kept = kept[: num_panes - len(first)]
        waiting = [path for path in running if path not in kept and path not in first]
        for idx, path in enumerate(kept):
            if waiting and known[path].ended_s is not None:
                kept[idx] = waiting.pop(0)
        room = num_panes - len(first) - len(kept)
        kept += waiting[:room]
        room = num_panes - len(first) - len(kept)
        if room > 0:
            rest = [path for path in reversed(names) if path not in kept and path not in first]
            kept += rest[:room]
        self._paths = kept
        return [*first, *kept]

    def title(self, view: RunView, path: str) -> str:
        """A pane's title: the step, how it stands, and its rate."""
        step = view.picture.steps.get(path)
        if step is None:
            return path
        text = view.texts.get(path)
        parts = [path, view.activity_of(step) or step.status]
        if text is not None and text.num_tokens:
            parts.append(f"{text.num_tokens:,} tok")
            if text.rate is not None:
                parts.append(f"{text.rate:.1f} t/s")
        return "  ".join(parts)
