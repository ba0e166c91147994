"""Prompts of steps that wait for a tool or a person: what is known of them may be computed.

While a run generates nothing, because all that is under way is a call or a question, the steps that
come next have prompts that begin with what is there already: a system text, a conversation to
continue, the text before the first value that is still missing. As with foreseen branches nothing
of the run depends on it: whoever finds it computed spares the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import FlowForgeError
from flowforge.language.program import Gen
from flowforge.runtime.commands import Prepare
from flowforge.runtime.state import Status
from flowforge.runtime.verbs.rules import CallKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.templates import Template
    from flowforge.runtime.consequences import Consequences
    from flowforge.runtime.state import RunState, ScopeState, StepState

_MOST_LOOKED_AT = 64


def prepare_coming(after: Consequences) -> None:
    """Tell of prompts that are known in part, if the run waits for nothing but the world."""
    state = after.state
    if not state.policy.prepares_prompts or not state.works or _generates(state):
        return
    for step in _next_of(state):
        if step.is_prepared:
            continue
        step.is_prepared = True
        command = _preparation_of(step)
        if command is not None:
            after.commands.append(command)


def _generates(state: RunState) -> bool:
    return any(
        isinstance(work.step.node.step.verb, Gen) and not isinstance(work.key, CallKey)
        for work in state.works.values()
    )


def _next_of(state: RunState) -> Iterator[StepState]:
    """Steps that wait for one that is under way; of a wide run some of them."""
    num_looked_at = 0
    for work in list(state.works.values()):
        step: StepState | None = work.step
        while step is not None:
            for name in step.node.dependents:
                num_looked_at += 1
                if num_looked_at > _MOST_LOOKED_AT:
                    return
                dependent = step.scope.steps[name]
                if dependent.status is Status.WAITING and not step.scope.is_stopping:
                    yield dependent
            step = step.scope.owner


def _preparation_of(step: StepState) -> Prepare | None:
    verb = step.node.step.verb
    if not isinstance(verb, Gen) or verb.turns != () or verb.tool_use is not None:
        return None
    continues: str | None = None
    system = None
    if verb.from_step is not None:
        continues = step.scope.find_step(verb.from_step).conversation
        if continues is None:
            return None
    elif verb.system is not None:
        system, is_whole = known_text(verb.system, step.scope)
        if not is_whole:
            return None
    beginning = "" if verb.user is None else known_text(verb.user, step.scope)[0]
    if continues is None and system is None and not beginning:
        return None
    return Prepare(step.path, continues, system, beginning, verb.model)


def known_text(template: Template, scope: ScopeState) -> tuple[str, bool]:
    """The text up to the first value that is not there yet, and whether that is all."""
    try:
        return template.render_known(scope)
    except FlowForgeError:
        # Its own time is early enough to say so.
        return "", False
