"""What the scheduler knows about a block before it runs: who waits for whom, who may continue whom.

Computed once per run from the checked program, shared by all instances of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.runtime.verbs import rules_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import Block, Step


@dataclass(frozen=True, slots=True)
class StepNode:
    """One step of a block.

    dependents: siblings that need this step. continues: names, own scope or outer, whose
    conversation this step or a step inside its bodies may fork. body: the graph of its block.
    """

    step: Step
    dependents: tuple[str, ...]
    continues: frozenset[str]
    body: BlockGraph | None


@dataclass(frozen=True, slots=True)
class BlockGraph:
    """The steps of one block, in file order."""

    nodes: Mapping[str, StepNode]


def graph_of(steps: Mapping[str, Step]) -> BlockGraph:
    """Index the steps of a block and of every block inside it; linear in steps and needs."""
    dependents: dict[str, list[str]] = {name: [] for name in steps}
    for name, step in steps.items():
        for needed in sorted(step.needs):
            dependents[needed].append(name)
    return BlockGraph(
        {name: _node_of(step, tuple(dependents[name])) for name, step in steps.items()}
    )


def _node_of(step: Step, dependents: tuple[str, ...]) -> StepNode:
    rules = rules_of(step.verb)
    block: Block | None = rules.body(step.verb)
    body = None if block is None else graph_of(block.steps)
    return StepNode(step, dependents, rules.continues(step.verb) | _free_names(body), body)


def _free_names(body: BlockGraph | None) -> frozenset[str]:
    """Conversations the steps of a body continue and do not start themselves."""
    if body is None:
        return frozenset()
    used = frozenset[str]().union(*(node.continues for node in body.nodes.values()))
    return used - body.nodes.keys()
