"""The verb `if`: one of two blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.blocks import parse_inner_block, resolve_block
from flowforge.language.program import If
from flowforge.language.types import NULL, join_types
from flowforge.language.value_drafts import expression_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.drafts import BlockDraft, Context
    from flowforge.language.scope import Names
    from flowforge.language.source import Span
    from flowforge.language.types import Type
    from flowforge.language.value_drafts import ValueDraft
    from flowforge.language.yaml_nodes import MappingNode

STEP_KEYS = ("if", "then", "else")


@dataclass(frozen=True, slots=True)
class IfDraft:
    """An `if` step before names are resolved."""

    condition: ValueDraft
    then: BlockDraft
    otherwise: BlockDraft | None
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the condition and both blocks read from outside."""
        yield from self.condition.names()
        yield from self.then.references()
        if self.otherwise is not None:
            yield from self.otherwise.references()

    def resolve(self, names: Names, context: Context) -> tuple[If, Type] | None:
        """The verb, and what either block yields."""
        condition = self.condition.condition(names, context.report)
        then = resolve_block(self.then, names, context)
        block = self.otherwise
        otherwise = None if block is None else resolve_block(block, names, context)
        if then is None or (block is not None and otherwise is None):
            return None
        other_type = NULL if otherwise is None else otherwise.result.type
        return If(condition, then, otherwise), join_types((then.result.type, other_type))


def parse_if(name: str, step: MappingNode, context: Context) -> IfDraft | None:
    """Read an `if` step."""
    entry, then, otherwise = step.entry("if"), step.entry("then"), step.entry("else")
    assert entry is not None
    condition = expression_of(entry, context, "${ draft.ok }")
    if then is None:
        message = f"step {name!r} has 'if' and no 'then'"
        context.report.error("WF103", message, entry.key_span, "'then' holds steps by name")
    then_draft = None if then is None else parse_inner_block(name, then, context)
    other_draft = None if otherwise is None else parse_inner_block(name, otherwise, context)
    is_broken = otherwise is not None and other_draft is None
    if condition is None or then_draft is None or is_broken:
        return None
    return IfDraft(condition, then_draft, other_draft)
