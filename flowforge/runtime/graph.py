"""What the scheduler knows about a block before it runs: who waits for whom, who may continue whom.

Computed once per run from the checked program, shared by all instances of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flowforge.language.expression_nodes import Name
from flowforge.language.ordering import order_of
from flowforge.language.program import Block, ForEach, Gen, Run, ToolUse, WrittenTurn
from flowforge.runtime.verbs import rules_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.language.program import Program, Step

CATCH = "/catch"
FINALLY = "/finally"
_UNBOUNDED = 256
"""Tokens that an answer is taken to have where nothing says how many."""


@dataclass(frozen=True, slots=True)
class StepNode:
    """One step of a block.

    dependents: siblings that need this step. continues: names, own scope or outer, whose
    conversation this step or a step inside its bodies may fork. continued_by: siblings that name
    this step so. bodies: graphs of the blocks of its verb, and of its `catch` and `finally`, by
    key. gone_over_by: siblings whose branches are the elements of the list that this one writes.
    num_following: tokens that siblings may write after it, in the longest chain.
    """

    step: Step
    dependents: tuple[str, ...]
    continues: frozenset[str]
    bodies: Mapping[str, BlockGraph]
    continued_by: tuple[str, ...] = ()
    gone_over_by: tuple[str, ...] = ()
    num_following: int = 0


@dataclass(frozen=True, slots=True)
class BlockGraph:
    """The steps of one block, in file order. num_tokens: that its longest chain may write."""

    nodes: Mapping[str, StepNode]
    num_tokens: int = 0


def graph_of(steps: Mapping[str, Step]) -> BlockGraph:
    """Index the steps of a block and of every block inside it; linear in steps and needs."""
    dependents: dict[str, list[str]] = {name: [] for name in steps}
    for name, step in steps.items():
        for needed in sorted(step.needs):
            dependents[needed].append(name)
    nodes = {name: _node_of(step, tuple(dependents[name])) for name, step in steps.items()}
    continued_by: dict[str, list[str]] = {}
    for name, node in nodes.items():
        for continued in sorted(node.continues & nodes.keys()):
            continued_by.setdefault(continued, []).append(name)
    for name, names in continued_by.items():
        nodes[name] = replace(nodes[name], continued_by=tuple(names))
    gone_over_by: dict[str, list[str]] = {}
    for name, step in steps.items():
        written = _list_of(step)
        if written in steps and _writes_elements(steps[written]):
            gone_over_by.setdefault(written, []).append(name)
    for written, names in gone_over_by.items():
        nodes[written] = replace(nodes[written], gone_over_by=tuple(names))
    return BlockGraph(nodes, _measure_chains(nodes))


def _measure_chains(nodes: dict[str, StepNode]) -> int:
    """Note in each node what may be written behind it; returns the longest chain of all."""
    ordered, _ = order_of({name: node.step.needs for name, node in nodes.items()})
    longest, from_here = 0, dict[str, int]()
    for name in reversed(ordered):
        node = nodes[name]
        following = max((from_here[one] for one in node.dependents), default=0)
        nodes[name] = replace(node, num_following=following)
        from_here[name] = following + _num_tokens(node)
        longest = max(longest, from_here[name])
    return longest


def _num_tokens(node: StepNode) -> int:
    """Tokens that a step may write, one behind the other; of a loop, in one round."""
    inside = max((body.num_tokens for body in node.bodies.values()), default=0)
    verb = node.step.verb
    if not isinstance(verb, Gen):
        return inside
    turns = verb.turns if isinstance(verb.turns, tuple) else ()
    written = [turn.sampling for turn in turns if isinstance(turn, WrittenTurn)]
    most = [one.max_tokens for one in (*written, verb.sampling)]
    return inside + sum(_UNBOUNDED if one is None else one for one in most)


def programs_of(program: Program) -> Iterator[Program]:
    """The program, and every program that a step of it runs, however deep."""
    yield program
    for step in all_steps(program.steps):
        for inner in _programs_inside(step):
            yield from programs_of(inner)


def all_steps(steps: Mapping[str, Step]) -> Iterator[Step]:
    """The steps of a block and of every block inside it, but not those of other programs."""
    for step in steps.values():
        yield step
        bodies = _bodies_beside(step) if _programs_inside(step) else _bodies(step)
        for _, body in bodies:
            yield from all_steps(body)


def _list_of(step: Step) -> str:
    """The name whose value a `for` goes over, all of it and whatever it is; else nothing."""
    if not isinstance(step.verb, ForEach) or step.when is not None:
        return ""
    listed = step.verb.items.node
    return listed.name if isinstance(listed, Name) else ""


def _writes_elements(step: Step) -> bool:
    """Whether parts of its answer, as it is written, are parts of its value."""
    verb = step.verb
    if not isinstance(verb, Gen) or verb.json_schema is None:
        return False
    return verb.n == 1 and verb.tool_use is None and verb.turns == ()


def _node_of(step: Step, dependents: tuple[str, ...]) -> StepNode:
    bodies = {key: graph_of(steps) for key, steps in _bodies(step)}
    free = frozenset[str]().union(*map(_free_names, bodies.values()))
    return StepNode(step, dependents, rules_of(step.verb).continues(step.verb) | free, bodies)


def _programs_inside(step: Step) -> tuple[Program, ...]:
    """Other programs whose steps the bodies of its verb are."""
    match step.verb:
        case Run(program):
            return (program,)
        case Gen(tool_use=ToolUse(tools)):
            return tuple(tool.program for tool in tools if tool.program is not None)
        case _:
            return ()


def _bodies(step: Step) -> Iterator[tuple[str, Mapping[str, Step]]]:
    yield from rules_of(step.verb).bodies(step.verb).items()
    yield from _bodies_beside(step)


def _bodies_beside(step: Step) -> Iterator[tuple[str, Mapping[str, Step]]]:
    """The blocks of a step that are none of its verb's."""
    if step.catch is not None and isinstance(step.catch.body, Block):
        yield CATCH, step.catch.body.steps
    if step.finally_block is not None:
        yield FINALLY, step.finally_block.steps


def _free_names(body: BlockGraph) -> frozenset[str]:
    """Conversations the steps of a body continue and do not start themselves."""
    used = frozenset[str]().union(*(node.continues for node in body.nodes.values()))
    return used - body.nodes.keys()
