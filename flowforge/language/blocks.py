"""Blocks of steps inside a step: what `do:` holds, and what the block yields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.drafts import BlockDraft
from flowforge.language.expression_nodes import Name
from flowforge.language.expressions import Expression
from flowforge.language.fields import template_of
from flowforge.language.program import Block
from flowforge.language.scope import Binding, Names
from flowforge.language.types import ANY

if TYPE_CHECKING:
    from flowforge.language.drafts import Context
    from flowforge.language.yaml_nodes import Entry


def parse_block(
    owner: str, steps: Entry, result: Entry | None, context: Context
) -> BlockDraft | None:
    """Read the block of step `owner`."""
    drafts = context.parse_steps(steps, context)
    for name in drafts:
        context.enclosing.setdefault(name, owner)
    template = template_of(result, context)
    if not drafts:
        return None
    if len(drafts) > 1 and result is None:
        names = ", ".join(drafts)
        message = f"{steps.key!r} of step {owner!r} has several steps ({names}) and no 'yield'"
        help = f"say what the block yields: yield: ${{ {list(drafts)[-1]} }}"
        context.report.error("WF116", message, steps.key_span, help)
    return BlockDraft(drafts, template, steps.key_span)


def resolve_block(draft: BlockDraft, outer: Names, context: Context) -> Block | None:
    """The block, its names resolved; None when a reported problem prevents it."""
    own = Names({}, outer)
    steps = context.resolve_steps(draft.steps, own, context)
    if draft.result is not None:
        return Block(steps, draft.result.whole(own, context.report))
    name, step = next(iter(draft.steps.items()))
    binding = own.find(name) or Binding("step", ANY)
    location = context.source.location(step.name_span.start)
    node = Name(0, len(name), name)
    return Block(steps, Expression(name, node, binding.type, frozenset((name,)), location))
