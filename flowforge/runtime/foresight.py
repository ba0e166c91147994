"""Works of branches to come, told of while the list that they are for is still being written.

A branch of a `for` begins when its list is there. What its first generations will be asked with is
known as soon as its element is: those are told of, so that they may begin, and the branch takes
what they have written by then. They change nothing of the run: no fact, no claim and no report is
theirs, and nobody but an equal `StartGeneration` has anything of them. So a list that fails, is cut
or is tried again needs no undoing, and neither journal nor resume knows of any of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import FlowForgeError
from flowforge.language.program import ForEach, Gen
from flowforge.runtime.actions import context_of, generation_of
from flowforge.runtime.commands import Foresee
from flowforge.runtime.scopes import scope_of_body
from flowforge.runtime.state import Stage, Status, StepState
from flowforge.runtime.verbs import rules_of
from flowforge.runtime.verbs.for_each import branch_of
from flowforge.runtime.verbs.rules import Fork, Generate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.program import JsonValue
    from flowforge.runtime.commands import StartGeneration
    from flowforge.runtime.consequences import Consequences
    from flowforge.runtime.state import RunState, ScopeState


def foresee_branch(after: Consequences, path: str, key: int | str, value: JsonValue) -> None:
    """An element of a list is final: tell of what the branches for it will ask first."""
    work = after.state.works.get(path)
    if work is None or not isinstance(key, int):
        return
    source = work.step
    if source.stage is not Stage.TRY or source.verdict is not None:
        return
    for name in source.node.gone_over_by:
        step = source.scope.steps[name]
        if step.status is not Status.WAITING or step.num_awaited > 1:
            continue
        for generation in _first_generations(after.state, step, key, value):
            if generation.path not in step.foreseen:
                step.foreseen.add(generation.path)
                after.commands.append(Foresee(generation))


def _first_generations(
    state: RunState, step: StepState, index: int, item: JsonValue
) -> Iterator[StartGeneration]:
    """What a branch of a `for` that waits for its list will ask for before anything has ended."""
    verb = step.node.step.verb
    assert isinstance(verb, ForEach)
    if verb.limit is not None and index >= verb.limit:
        return
    scope = scope_of_body(step, branch_of(verb, index, item, is_last=False))
    for name, node in scope.graph.nodes.items():
        one = node.step
        is_plain = isinstance(one.verb, Gen) and one.verb.options.scoring != "exact"
        if is_plain and not one.needs and one.when is None and one.cache_s is None:
            inner = StepState(scope.prefix + name, node, scope, num_awaited=0, attempt=1)
            yield from _generations(state, inner)


def _generations(state: RunState, step: StepState) -> Iterator[StartGeneration]:
    verb = step.node.step.verb
    try:
        reaction = rules_of(verb).start(verb, context_of(state, step))
    except (FlowForgeError, KeyError):
        # It reads what is not there yet, or will fail; its own time is early enough to say so.
        return
    for action in reaction.actions:
        if isinstance(action, Generate) and _has_source(action, step.scope):
            yield generation_of(state, step, action)


def _has_source(action: Generate, scope: ScopeState) -> bool:
    source = action.source
    return not isinstance(source, Fork) or scope.find_step(source.name).conversation is not None
