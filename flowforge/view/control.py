"""What a viewer can do to a run, wherever the run is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

Action = Literal["cancel", "cancel step", "pause", "go on", "answer", "limits"]


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What a run may use, by the names of `control.limits.Limits`, and what it has used."""

    limits: Mapping[str, float | None]
    used: Mapping[str, float]


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

    def limits(self, changes: Mapping[str, float | None]) -> RunLimits:
        """Set those limits that are named, None taking one away; all of them as they are then.

        Raises as `order` does.
        """
        ...
