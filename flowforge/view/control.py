"""What a viewer can do to a run, wherever the run is."""

from __future__ import annotations

from typing import Literal, Protocol

Action = Literal["cancel", "cancel step", "pause", "go on", "answer"]


class RunControl(Protocol):
    """The way to one run. Orders are carried out by the run and show in its events."""

    @property
    def actions(self) -> frozenset[Action]:
        """What the run lets a viewer do."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether the run begins nothing new for now."""
        ...

    def order(self, action: Action, *, path: str = "", text: str = "") -> None:
        """Send an order. path: of a step to cancel; path, text: of an answer.

        Raises EngineError EN708 for a run that cannot be reached, or refuses.
        """
        ...
