"""The scheduler: a report comes in, commands and facts go out; no loop, no clock, no engine.

The state belongs to the caller and is changed here alone. The same reports in the same order give
the same decisions.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, assert_never

from flowforge.errors import FlowForgeError, InternalError
from flowforge.runtime.commands import (
    Answered,
    Begin,
    Broken,
    Cancelled,
    CancelRun,
    Command,
    Decision,
    Failed,
    Opened,
    Outcome,
    ReleaseConversation,
    Report,
    StartGeneration,
    StopGeneration,
    Stopped,
    Succeeded,
)
from flowforge.runtime.events import (
    Fact,
    RunStarted,
    StepCancelled,
    StepFailed,
    StepFinished,
    StepStarted,
)
from flowforge.runtime.graph import graph_of
from flowforge.runtime.state import Failure, Hold, Phase, RunState, ScopeState, Status, StepState
from flowforge.runtime.verbs import rules_of
from flowforge.runtime.verbs.rules import Finish, Generate, OpenBranch, StepContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.language.program import JsonValue, Program
    from flowforge.runtime.verbs.rules import Action, Reaction, Validator


def new_state(program: Program, inputs: Mapping[str, JsonValue], validate: Validator) -> RunState:
    """The state of a run that has not begun. inputs: complete, as `resolve_inputs` gives them."""
    return RunState(program, graph_of(program.steps), inputs, validate)


def advance(state: RunState, report: Report) -> Decision:
    """Take one report into the state and decide what follows. Reports after the end change nothing.

    Raises InternalError when the report contradicts the state.
    """
    turn = _Turn(state)
    if state.phase is not Phase.ENDED:
        turn.take(report)
    return Decision(tuple(turn.commands), tuple(turn.facts), turn.outcome)


class _Turn:
    """One report's consequences, collected until nothing more follows."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.commands: list[Command] = []
        self.facts: list[Fact] = []
        self.outcome: Outcome | None = None
        # A queue and not recursion: a long chain of steps that finish at once must not be deep.
        self.ready: deque[StepState] = deque()

    def take(self, report: Report) -> None:
        self._dispatch(report)
        while self.ready:
            step = self.ready.popleft()
            if self.state.phase is Phase.RUNNING:
                self._start(step)
        if self._is_over():
            self._end()

    def _dispatch(self, report: Report) -> None:
        match report:
            case Begin():
                self.facts.append(RunStarted(self.state.program.name, self.state.inputs))
                variables: dict[str, JsonValue] = {"inputs": dict(self.state.inputs)}
                self.state.top = ScopeState("", self.state.graph, variables)
                self._open_scope(self.state.top)
            case Opened(path):
                self._drop_claims(self._step(path))
            case Answered(path, done):
                step = self._landed(path)
                rules = rules_of(step.node.step.verb)
                context = self._context(step)
                self._react(step, lambda: rules.answered(step.node.step.verb, context, done))
            case Failed(path, error):
                self._fail(self._landed(path), error)
            case Stopped(path):
                self._cancel(self._landed(path))
            case CancelRun():
                if self.state.phase is Phase.RUNNING:
                    self._wind_down(Phase.CANCELLING)
            case _:
                assert_never(report)

    # -- steps ------------------------------------------------------------------------------------

    def _start(self, step: StepState) -> None:
        step.move("start")
        verb = step.node.step.verb
        rules = rules_of(verb)
        continued = [step.scope.find_step(name).path for name in rules.continues(verb)]
        self.facts.append(StepStarted(step.path, rules.word, continued[0] if continued else None))
        context = self._context(step)
        self._react(step, lambda: rules.start(verb, context))

    def _react(self, step: StepState, rule: Callable[[], Reaction]) -> None:
        """Apply a verb's rule; what it raises fails the step."""
        try:
            reaction = rule()
        except FlowForgeError as error:
            self._fail(step, error)
            return
        step.memory = reaction.memory
        for action in reaction.actions:
            self._act(step, action)

    def _act(self, step: StepState, action: Action) -> None:
        match action:
            case Generate():
                source = action.continues
                continued = None if source is None else step.scope.find_step(source).path
                step.hold = Hold.OPEN
                self.state.in_flight.add(step.path)
                self.commands.append(
                    StartGeneration(
                        step.path, continued, action.system, action.user, action.request
                    )
                )
            case OpenBranch():
                self._open_branch(step, action)
                if action.is_last:
                    self._drop_claims(step)
            case Finish():
                self._finish(step, action)
            case _:
                assert_never(action)

    def _finish(self, step: StepState, finish: Finish) -> None:
        step.move("finish")
        step.value = finish.value
        self.facts.append(StepFinished(step.path, finish.value, finish.finish_reason, finish.usage))
        self._drop_claims(step)
        self._release_if_unclaimed(step)
        for name in step.node.dependents:
            dependent = step.scope.steps[name]
            dependent.num_awaited -= 1
            if dependent.num_awaited == 0:
                self.ready.append(dependent)
        step.scope.num_unfinished -= 1
        if step.scope.num_unfinished == 0 and step.scope.owner is not None:
            self._close_branch(step.scope, step.scope.owner)

    def _fail(self, step: StepState, error: FlowForgeError) -> None:
        step.move("fail")
        self.facts.append(StepFailed(step.path, error.code, error.message, error.help))
        self.state.failures.append(Failure(step.path, error))
        self._release(step)
        if self.state.phase is Phase.RUNNING:
            self._wind_down(Phase.FAILING)

    def _cancel(self, step: StepState) -> None:
        was_running = step.status is Status.RUNNING
        step.move("cancel")
        if was_running:
            self.facts.append(StepCancelled(step.path))
        self._release(step)

    def _step(self, path: str) -> StepState:
        step = self.state.steps.get(path)
        if step is None:
            raise InternalError("IN504", f"a report names {path!r}, which no step instance has")
        return step

    def _landed(self, path: str) -> StepState:
        """The step whose generation is no longer in flight."""
        if path not in self.state.in_flight:
            raise InternalError("IN505", f"a report ends {path!r}, which was not generating")
        self.state.in_flight.remove(path)
        return self._step(path)

    def _context(self, step: StepState) -> StepContext:
        return StepContext(step.path, step.scope, self.state.validate)

    # -- scopes -----------------------------------------------------------------------------------

    def _open_branch(self, owner: StepState, branch: OpenBranch) -> None:
        graph = owner.node.body
        if graph is None:
            raise InternalError("IN506", f"step {owner.path!r} opens a branch and has no block")
        self._open_scope(
            ScopeState(
                prefix=f"{owner.path}[{branch.index}]/",
                graph=graph,
                variables=branch.variables,
                outer=owner.scope,
                owner=owner,
                index=branch.index,
            )
        )

    def _open_scope(self, scope: ScopeState) -> None:
        for name, node in scope.graph.nodes.items():
            path = scope.prefix + name
            step = StepState(path, node, scope, num_awaited=len(node.step.needs))
            scope.steps[name] = self.state.steps[path] = step
        scope.num_unfinished = len(scope.steps)
        for step in scope.steps.values():
            for name in step.node.continues:
                scope.find_step(name).num_claims += 1
            if step.num_awaited == 0:
                self.ready.append(step)

    def _close_branch(self, scope: ScopeState, owner: StepState) -> None:
        verb = owner.node.step.verb
        rules = rules_of(verb)
        body = rules.body(verb)
        if body is None:
            raise InternalError("IN506", f"step {owner.path!r} closes a branch and has no block")

        def gathered() -> Reaction:
            owner.branch_values[scope.index] = body.result.evaluate(scope)
            return rules.branch_done(verb, owner.memory, owner.branch_values)

        # Its values live on in the owner; its instances need not, however many items there are.
        for step in scope.steps.values():
            del self.state.steps[step.path]
        if self.state.phase is Phase.RUNNING:
            self._react(owner, gathered)

    # -- conversations ----------------------------------------------------------------------------

    def _drop_claims(self, step: StepState) -> None:
        """The step will fork nothing any more; idempotent."""
        if not step.has_claims:
            return
        step.has_claims = False
        for name in step.node.continues:
            source = step.scope.find_step(name)
            source.num_claims -= 1
            self._release_if_unclaimed(source)

    def _release_if_unclaimed(self, step: StepState) -> None:
        if step.num_claims == 0 and step.status is Status.FINISHED:
            self._release(step)

    def _release(self, step: StepState) -> None:
        if step.hold is Hold.OPEN:
            step.hold = Hold.RELEASED
            self.commands.append(ReleaseConversation(step.path))

    # -- the end ----------------------------------------------------------------------------------

    def _wind_down(self, phase: Phase) -> None:
        self.state.phase = phase
        self.ready.clear()
        self.commands += [StopGeneration(path) for path in sorted(self.state.in_flight)]

    def _is_over(self) -> bool:
        if self.state.phase is Phase.RUNNING:
            return self.state.top is not None and self.state.top.num_unfinished == 0
        return not self.state.in_flight

    def _end(self) -> None:
        if self.state.phase is Phase.RUNNING:
            assert self.state.top is not None
            self.outcome = self._outputs(self.state.top)
        elif self.state.phase is Phase.FAILING:
            self.outcome = Broken(tuple(self.state.failures))
        else:
            self.outcome = Cancelled()
        # Last opened first: what is inside a branch is told before the step around it.
        for step in reversed(list(self.state.steps.values())):
            if step.status in {Status.WAITING, Status.RUNNING}:
                self._cancel(step)
            self._release(step)
        self.state.phase = Phase.ENDED

    def _outputs(self, top: ScopeState) -> Succeeded | Broken:
        outputs: dict[str, JsonValue] = {}
        for name, output in self.state.program.outputs.items():
            try:
                outputs[name] = output.value.evaluate(top)
            except FlowForgeError as error:
                path = f"outputs.{name}"
                self.facts.append(StepFailed(path, error.code, error.message, error.help))
                self.state.failures.append(Failure(path, error))
        if self.state.failures:
            return Broken(tuple(self.state.failures))
        return Succeeded(outputs)
