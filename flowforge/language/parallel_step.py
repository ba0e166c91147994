"""The verb `parallel`: named branches at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.blocks import parse_inner_block, resolve_block
from flowforge.language.drafts import BlockDraft
from flowforge.language.fields import is_safe_name, mapping_of
from flowforge.language.joins import (
    check_reach,
    names_of_join,
    parse_join,
    resolve_join,
    type_of_branches,
)
from flowforge.language.program import Parallel
from flowforge.language.types import join_types
from flowforge.language.yaml_nodes import MappingNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.language.drafts import Context
    from flowforge.language.joins import JoinDraft
    from flowforge.language.program import Block
    from flowforge.language.scope import Names
    from flowforge.language.source import Span
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import Entry

STEP_KEYS = ("parallel", "join")
_FORM = "branches are steps by name: parallel: { quick: { user: …, gen: }, careful: { … } }"


@dataclass(frozen=True, slots=True)
class ParallelDraft:
    """A `parallel` step before names are resolved."""

    branches: Mapping[str, BlockDraft]
    join: JoinDraft
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the branches read from outside."""
        for branch in self.branches.values():
            yield from branch.references()
        yield from names_of_join(self.join)

    def resolve(self, names: Names, context: Context) -> tuple[Parallel, Type] | None:
        """The verb, and what the join makes of the branches."""
        branches: dict[str, Block] = {}
        for name, draft in self.branches.items():
            block = resolve_block(draft, names, context)
            if block is not None:
                branches[name] = block
        if len(branches) < len(self.branches):
            return None
        types = {name: block.result.type for name, block in branches.items()}
        join = resolve_join(self.join, join_types(types.values()), names, context)
        return Parallel(branches, join), type_of_branches(join, types)


def parse_parallel(name: str, step: MappingNode, context: Context) -> ParallelDraft | None:
    """Read a `parallel` step."""
    entry = step.entry("parallel")
    assert entry is not None
    join = parse_join(step.entry("join"), context)
    mapping = mapping_of(entry, context.report, _FORM)
    if mapping is None:
        return None
    if not mapping.entries:
        context.report.error("WF107", "'parallel' holds no branches", entry.key_span, _FORM)
        return None
    branches: dict[str, BlockDraft] = {}
    for one in mapping.entries:
        is_safe_name(one.key, one.key_span, "branch", context.report)
        branch = _branch_of(name, one, context)
        if branch is not None:
            branches[one.key] = branch
    check_reach(join, step.entry("join"), len(mapping.entries), context)
    return ParallelDraft(branches, join) if len(branches) == len(mapping.entries) else None


def _branch_of(owner: str, entry: Entry, context: Context) -> BlockDraft | None:
    node = entry.value
    # Among steps only those of `for` and `loop` have a `do`.
    keys = {one.key for one in node.entries} if isinstance(node, MappingNode) else set[str]()
    if "do" in keys and keys.isdisjoint(("for", "loop")):
        return parse_inner_block(owner, entry, context)
    draft = context.parse_step(entry, context)
    context.enclosing.setdefault(entry.key, owner)
    return None if draft.verb is None else BlockDraft({entry.key: draft}, None, entry.key_span)
