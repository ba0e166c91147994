"""How long tools and people take: by the mean of what they have taken."""

from __future__ import annotations

from flowforge.runtime.commands import StartCall, StartQuestion


class ToolTimes:
    """Learns from works that ended; runs of one process may share one."""

    def __init__(self) -> None:
        self._took: dict[str, tuple[int, float]] = {}

    def took(self, command: StartCall | StartQuestion, seconds: float) -> None:
        """A call has returned, or a person has answered, after so long."""
        key = _key(command)
        num_known, total_s = self._took.get(key, (0, 0.0))
        self._took[key] = (num_known + 1, total_s + seconds)

    def expected_s(self, command: StartCall | StartQuestion) -> float:
        """How long it may take; 0 where nothing is known."""
        num_known, total_s = self._took.get(_key(command), (1, 0.0))
        return total_s / num_known


def _key(command: StartCall | StartQuestion) -> str:
    """Calls of one tool are alike, and so are questions."""
    if isinstance(command, StartQuestion):
        return "?"
    return f"{command.tool.name} {command.member or ''}"
