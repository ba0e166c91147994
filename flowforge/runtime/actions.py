"""What verbs ask for, carried into the state of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from flowforge.errors import FlowForgeError
from flowforge.language.program import Gen, WrittenTurn
from flowforge.runtime.commands import ExpectUse, StartCall, StartGeneration, StartQuestion
from flowforge.runtime.conversations import drop_claims, hold
from flowforge.runtime.events import StepAsked, StepStarted
from flowforge.runtime.next_uses import tell_next_uses
from flowforge.runtime.scopes import open_body
from flowforge.runtime.state import Fails, Work
from flowforge.runtime.verbs import rules_of
from flowforge.runtime.verbs.rules import (
    BranchEnd,
    CallKey,
    Finish,
    Fork,
    Generate,
    Invoke,
    Open,
    OpenBranch,
    Own,
    Question,
    StepContext,
    Tell,
    Wait,
    WorkEnd,
)
from flowforge.runtime.verbs.tool_rounds import call_path
from flowforge.runtime.verdicts import decide

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.language.program import Verb
    from flowforge.runtime.consequences import Consequences
    from flowforge.runtime.state import RunState, StepState
    from flowforge.runtime.verbs.rules import Action, Reaction, WorkKey


def start_verb(after: Consequences, step: StepState) -> None:
    """Let the verb begin a try."""
    rules, verb = rules_of(step.node.step.verb), step.node.step.verb
    _react(after, step, lambda: rules.start(verb, context_of(after.state, step)))


def tell_verb(after: Consequences, step: StepState, end: WorkEnd | BranchEnd | None) -> None:
    """Let the verb react: a work or branch of this try has ended, or, None, its wait has."""
    rules, verb = rules_of(step.node.step.verb), step.node.step.verb
    context = context_of(after.state, step)
    match end:
        case WorkEnd():
            _react(after, step, lambda: rules.work_ended(verb, context, step.memory, end))
        case BranchEnd():
            _react(after, step, lambda: rules.branch_ended(verb, context, step.memory, end))
        case None:
            _react(after, step, lambda: rules.elapsed(verb, context, step.memory))
        case _:
            assert_never(end)


def work_path(path: str, key: WorkKey) -> str:
    """The path of a work of the try `path`; also that of its conversation."""
    if isinstance(key, CallKey):
        return call_path(path, key)
    return path if key is None else f"{path}[{key}]"


def _react(after: Consequences, step: StepState, rule: Callable[[], Reaction]) -> None:
    """Apply a verb's rule; what it raises fails the try."""
    try:
        reaction = rule()
    except FlowForgeError as error:
        decide(after, step, Fails(error))
        return
    step.memory = reaction.memory
    for action in reaction.actions:
        _act(after, step, action)


def _act(after: Consequences, step: StepState, action: Action) -> None:
    path = step.attempt_path
    match action:
        case Generate():
            _generate(after, step, action)
        case Invoke():
            _invoke(after, step, action)
        case Tell(fact):
            after.facts.append(fact)
        case Question():
            _add_work(after.state, step, path, None)
            after.facts.append(StepAsked(path, action.prompt, action.choices, action.show))
            after.commands.append(StartQuestion(path, action.prompt, action.choices, action.show))
            tell_next_uses(after, step.scope)
        case Wait():
            after.start_timer(step, "wait", action.delay_s)
        case OpenBranch():
            open_body(after, step, action)
            if action.is_last and not step.may_fork_again:
                drop_claims(after, step)
        case Finish():
            decide(after, step, action)
        case _:
            assert_never(action)


def _invoke(after: Consequences, step: StepState, action: Invoke) -> None:
    path = work_path(step.attempt_path, action.key)
    _add_work(after.state, step, path, action.key)
    if action.key is not None:
        after.facts.append(StepStarted(path, "call"))
    after.commands.append(
        StartCall(path, action.tool, action.arguments, action.member, step.node.step.cache_s)
    )
    own = step.attempt_path
    if action.key is not None and own in step.conversations:
        # The model that called goes on as soon as it has all results.
        after.commands.append(ExpectUse(own, 1, tuple(sorted(step.works))))
    tell_next_uses(after, step.scope)


def generation_of(state: RunState, step: StepState, action: Generate) -> StartGeneration:
    """The generation that a step asks for by an action of its verb. Changes nothing."""
    path = work_path(step.attempt_path, action.key)
    continues: str | None = None
    system: str | None = None
    match action.source:
        case Open(text):
            system = text
        case Fork(name):
            continues = step.scope.find_step(name).conversation
        case Own():
            continues = step.attempt_path
        case _:
            assert_never(action.source)
    verb, request = step.node.step.verb, action.request
    tags = verb.tags if isinstance(verb, Gen) else ()
    request = replace(request, priority=step.node.step.priority, tags=tags, run_key=str(state.seed))
    if state.policy.tells_chains:
        num_following = step.scope.num_following + step.node.num_following
        request = replace(request, num_following=num_following)
    return StartGeneration(
        *(path, continues, system, action.said, request, action.model),
        cache_s=step.node.step.cache_s,
        is_seeded=_is_seeded(step.node.step.verb),
        tells_parts=state.policy.foresees_branches and bool(step.node.gone_over_by),
    )


def _generate(after: Consequences, step: StepState, action: Generate) -> None:
    command = generation_of(after.state, step, action)
    path, continues = command.path, command.continues
    _add_work(after.state, step, path, action.key)
    if continues != path:
        hold(step, path)
    if action.key is not None:
        after.facts.append(StepStarted(path, "gen", continues))
    after.commands.append(command)
    if step.scope.owner is not None:
        step.scope.owner.foreseen.discard(path)


def _is_seeded(verb: Verb) -> bool:
    """Whether the file gives a seed for what a verb writes."""
    if not isinstance(verb, Gen):
        return False
    turns = verb.turns if isinstance(verb.turns, tuple) else ()
    written = [turn.sampling for turn in turns if isinstance(turn, WrittenTurn)]
    return any(sampling.seed is not None for sampling in (verb.sampling, *written))


def _add_work(state: RunState, step: StepState, path: str, key: WorkKey) -> None:
    step.works.add(path)
    state.works[path] = Work(step, key)


def context_of(state: RunState, step: StepState) -> StepContext:
    """What a verb's rules see of a run and of the step's try."""
    scope = step.scope
    return StepContext(
        step.attempt_path,
        step.attempt,
        scope,
        state.validate,
        state.seed,
        scope.tools,
        state.offered,
    )
