"""Blocks of steps inside a step, and what each yields.

`for` and `loop` hold theirs under `do:`, with `yield:` beside it. Everywhere else a block is a
mapping of steps, or `{ do: …, yield: … }` when it has to say what it yields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.drafts import BlockDraft
from flowforge.language.expression_nodes import Constant, Name
from flowforge.language.expressions import Expression
from flowforge.language.fields import check_keys
from flowforge.language.program import Block
from flowforge.language.scope import Binding, Names
from flowforge.language.types import ANY, NULL
from flowforge.language.value_drafts import value_of
from flowforge.language.yaml_nodes import MappingNode

if TYPE_CHECKING:
    from flowforge.language.drafts import Context
    from flowforge.language.yaml_nodes import Entry


def parse_block(
    owner: str, steps: Entry, result: Entry | None, context: Context, has_value: bool = True
) -> BlockDraft | None:
    """Read the block of step `owner`. has_value: whether somebody wants what it yields."""
    drafts = context.parse_steps(steps, context)
    for name in drafts:
        context.enclosing.setdefault(name, owner)
    value = value_of(result, context)
    if not drafts:
        return None
    if len(drafts) > 1 and result is None and has_value:
        names = ", ".join(drafts)
        message = f"{steps.key!r} of step {owner!r} has several steps ({names}) and no 'yield'"
        help = f"say what the block yields: yield: ${{ {list(drafts)[-1]} }}"
        if steps.key not in ("do", "loop"):
            help = f"write {steps.key}: {{ do: …, yield: ${{ {list(drafts)[-1]} }} }}"
        context.report.error("WF116", message, steps.key_span, help)
    return BlockDraft(drafts, value, steps.key_span, has_value)


def parse_inner_block(
    owner: str, entry: Entry, context: Context, has_value: bool = True
) -> BlockDraft | None:
    """Read a block that is a mapping of steps, or has `do` and perhaps `yield`."""
    node = entry.value
    do = node.entry("do") if isinstance(node, MappingNode) else None
    if do is None or not isinstance(node, MappingNode):
        return parse_block(owner, entry, None, context, has_value)
    check_keys(node, ("do", "yield"), (), f"{entry.key!r}", context.report)
    return parse_block(owner, do, node.entry("yield"), context, has_value)


def resolve_block(draft: BlockDraft, outer: Names, context: Context) -> Block | None:
    """The block, its names resolved; None when a reported problem prevents it."""
    return resolve_block_with_names(draft, outer, context)[0]


def resolve_block_with_names(
    draft: BlockDraft, outer: Names, context: Context
) -> tuple[Block | None, Names]:
    """The block, and the names that stand inside it."""
    own = Names({}, outer)
    steps = context.resolve_steps(draft.steps, own, context)
    if draft.result is not None:
        return Block(steps, draft.result.typed(own, context.report)), own
    location = context.source.location(draft.span.start)
    if not draft.has_value:
        nothing = Expression("null", Constant(0, 0, None), NULL, frozenset(), location)
        return Block(steps, nothing), own
    name, step = next(iter(draft.steps.items()))
    binding = own.find(name) or Binding("step", ANY)
    location = context.source.location(step.name_span.start)
    node = Name(0, len(name), name)
    return Block(steps, Expression(name, node, binding.type, frozenset((name,)), location)), own
