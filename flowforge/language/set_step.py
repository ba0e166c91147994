"""The verb `set`: a value, computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.program import Set
from flowforge.language.value_drafts import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.drafts import Context
    from flowforge.language.scope import Names
    from flowforge.language.source import Span
    from flowforge.language.types import Type
    from flowforge.language.value_drafts import ValueDraft
    from flowforge.language.yaml_nodes import MappingNode

STEP_KEYS = ("set",)


@dataclass(frozen=True, slots=True)
class SetDraft:
    """A `set` step before names are resolved."""

    value: ValueDraft
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the value reads."""
        yield from self.value.names()

    def resolve(self, names: Names, context: Context) -> tuple[Set, Type] | None:
        """The verb, and the value's type."""
        value = self.value.typed(names, context.report)
        return Set(value), value.type


def parse_set(name: str, step: MappingNode, context: Context) -> SetDraft | None:
    """Read a `set` step."""
    del name
    value = value_of(step.entry("set"), context)
    return None if value is None else SetDraft(value)
