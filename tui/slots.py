"""Which steps' texts are side by side: what runs comes first, and nothing moves while it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.view.acting import is_within

if TYPE_CHECKING:
    from flowforge.view.run_view import RunView


class StreamSlots:
    """Keeps each pane's step until its text is done and another one waits for the place."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._chosen = ""
        self._inside = ""
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
        looked_at = self._looked_at(view) if self._chosen == chosen else ""
        first = [looked_at] if looked_at else []
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

    def _looked_at(self, view: RunView) -> str:
        """The chosen step, or where that only holds others, one in it: what runs comes first.

        "" of none.
        """
        known, chosen = view.writers, self._chosen
        within = [path for path in known if is_within(path, chosen)]
        if chosen in known or not within:
            return chosen if chosen in view.picture.steps else ""
        running = [path for path in within if known[path].ended_s is None]
        if self._inside not in (running or within):
            self._inside = running[0] if running else within[-1]
        return self._inside

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
