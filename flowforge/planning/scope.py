"""What names mean while a plan is made: values, and conversations that can be continued."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.planning.prompts import PlannedTurn
    from flowforge.planning.quantity import Quantity
    from flowforge.planning.values import PlanValue


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a step leaves for others to continue.

    path: of that step. length: tokens so far. is_certain: False when it may not be there.
    """

    turns: tuple[PlannedTurn, ...]
    path: str
    length: Quantity
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class PlanScope:
    """One lexical scope over those around it; steps add to its first map as they are planned."""

    values: ChainMap[str, PlanValue] = field(default_factory=ChainMap[str, "PlanValue"])
    conversations: ChainMap[str, Conversation | None] = field(
        default_factory=ChainMap[str, "Conversation | None"]
    )

    def inner(self, variables: Mapping[str, PlanValue]) -> PlanScope:
        """A block's scope within this one."""
        return PlanScope(self.values.new_child(dict(variables)), self.conversations.new_child())
