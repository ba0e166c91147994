"""Prompts of steps to come: what they begin with, and in how many steps they are asked.

A text that several steps begin with, as the role of an agent whose turn comes again (KVFlow,
arXiv 2507.07400), belongs to no conversation that is held meanwhile. So a backend is told what is
known of the prompts that start conversations: where memory is short it keeps what is asked soonest.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from flowforge.language.program import Gen
from flowforge.runtime.commands import ExpectPrompt
from flowforge.runtime.events import RunStarted, StepFinished
from flowforge.runtime.next_uses import awaited_works, steps_before
from flowforge.runtime.preparing import known_text
from flowforge.runtime.state import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.runtime.consequences import Consequences
    from flowforge.runtime.state import ScopeState, StepState

_MOST_LOOKED_AT = 64
_NEAR = 8
"""Steps to a prompt from which on each one less is told; before, only half as many are."""


def expect_prompts(after: Consequences) -> None:
    """Tell of coming prompts of the program's own steps, if that is news."""
    state = after.state
    if not state.policy.expects_prompts or state.top is None or state.top.is_stopping:
        return
    if not any(isinstance(fact, RunStarted | StepFinished) for fact in after.facts):
        return
    counted: dict[str, int] = {}
    for step in islice(_coming(state.top), _MOST_LOOKED_AT):
        command = _expectation_of(step, steps_before(step, counted))
        if command is not None and _is_news(command, step.prompt_told):
            step.prompt_told = command
            after.commands.append(command)


def _coming(top: ScopeState) -> Iterator[StepState]:
    """Steps that wait and will begin a conversation of their own."""
    for step in top.steps.values():
        verb = step.node.step.verb
        if step.status is Status.WAITING and isinstance(verb, Gen) and verb.from_step is None:
            yield step


def _expectation_of(step: StepState, num_steps: int) -> ExpectPrompt | None:
    verb = step.node.step.verb
    assert isinstance(verb, Gen), "only a model is prompted"
    if verb.turns != () or verb.model is not None:
        # Another model is opened when it is asked, and not before.
        return None
    system: str | None = None
    beginning, is_whole = "", True
    if verb.system is not None:
        system, is_whole = known_text(verb.system, step.scope)
    if verb.user is not None and is_whole:
        beginning = known_text(verb.user, step.scope)[0]
    if not system and not beginning:
        return None
    awaits = awaited_works(step)
    return ExpectPrompt(step.path, system, beginning, num_steps, awaits)


def _is_news(command: ExpectPrompt, told: ExpectPrompt | None) -> bool:
    if told is None or command.awaits != told.awaits:
        return True
    if (command.system, command.beginning) != (told.system, told.beginning):
        return True
    num_steps = command.num_steps
    return num_steps < told.num_steps and (num_steps <= _NEAR or 2 * num_steps <= told.num_steps)
