"""Blocks of a verb, as the verb sees their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import FlowForgeError
from flowforge.runtime.joins import Value
from flowforge.runtime.state import Failure

if TYPE_CHECKING:
    from flowforge.language.program import Block, JsonValue
    from flowforge.runtime.joins import End
    from flowforge.runtime.verbs.rules import BranchEnd


def value_of_branch(block: Block, end: BranchEnd) -> JsonValue:
    """What the block yields. Raises WorkflowError when that cannot be computed."""
    return block.result.evaluate(end.scope)


def end_of_branch(block: Block, end: BranchEnd) -> End:
    """What a branch contributes to a join: its value, or the first of its failures."""
    if end.failures:
        return end.failures[0]
    try:
        return Value(value_of_branch(block, end))
    except FlowForgeError as error:
        return Failure(end.path, error)
