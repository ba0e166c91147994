"""One report's consequences for scopes and step instances.

A step instance tries its verb; a try may be followed by another (`retry`), the last one by `catch`,
and everything by `finally`. Whatever ends a stage, be it a value, a failure, a timeout or a cancel,
is a *verdict*: it is kept until nothing runs for the step any more, and then carried out. So a step
never has an end while a work of it still holds memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Literal, assert_never

from flowforge.backends.protocol import GenerationDone
from flowforge.errors import FlowForgeError, InternalError, WorkflowError
from flowforge.language.program import Block
from flowforge.runtime.commands import (
    Command,
    StartCall,
    StartGeneration,
    StartQuestion,
    StartTimer,
    Stop,
    StopTimer,
)
from flowforge.runtime.conversations import drop_claims, hold, keep_only, release_all
from flowforge.runtime.events import (
    Fact,
    StepAsked,
    StepCancelled,
    StepCaught,
    StepFailed,
    StepFinished,
    StepRetried,
    StepSkipped,
    StepStarted,
)
from flowforge.runtime.graph import CATCH, FINALLY
from flowforge.runtime.joins import error_value
from flowforge.runtime.layers import Layered
from flowforge.runtime.retries import TIMED_OUT, backoff_s, may_pass_later
from flowforge.runtime.state import (
    Cancels,
    Fails,
    Failure,
    ScopeState,
    Stage,
    Status,
    StepState,
    Timer,
    Work,
)
from flowforge.runtime.verbs import rules_of
from flowforge.runtime.verbs.rules import (
    BranchEnd,
    Finish,
    Fork,
    Generate,
    Invoke,
    Open,
    OpenBranch,
    Own,
    Question,
    StepContext,
    Wait,
    WorkEnd,
    holds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.language.program import JsonValue, ToolSpec
    from flowforge.runtime.state import RunState, Verdict
    from flowforge.runtime.verbs.rules import Action, Reaction, ReturnedValue

FINALLY_LIMIT_S = 60.0
"""How long a `finally` may take; nothing else can end it, so something must."""


class Turn:
    """Collects commands and facts until nothing more follows from one report.

    Consequences wait in queues and do not recurse: a long chain of steps that end at once must not
    be deep, and a scope is looked at only when the step that changed it is whole again.
    """

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.commands: list[Command] = []
        self.facts: list[Fact] = []
        self._checks: deque[StepState | ScopeState] = deque()

    def settle(self) -> None:
        """Carry out verdicts, close scopes and start steps until there is nothing left to do."""
        ready = self.state.ready
        while self._checks or ready:
            if self._checks:
                one = self._checks.popleft()
                if isinstance(one, ScopeState):
                    self._check_scope(one)
                else:
                    self._check_step(one)
                continue
            _, _, step = heappop(ready)
            if step.status is Status.WAITING:
                self._start(step)

    # -- reports ----------------------------------------------------------------------------------

    def opened(self, path: str) -> None:
        """The conversation of a work is there: what it forked may go, unless it is forked again."""
        step = self._work(path).step
        step.num_forking -= 1
        if step.num_forking == 0 and not step.may_fork_again:
            drop_claims(self, step)

    def work_ended(
        self, path: str, result: GenerationDone | ReturnedValue | FlowForgeError | None
    ) -> None:
        """A work is not in flight any more. result: None when it was stopped."""
        work = self._work(path)
        step = work.step
        del self.state.works[path]
        step.works.remove(path)
        if isinstance(result, FlowForgeError) and result.location is None:
            # Backends know no file: that a prompt is too long is said where the prompt is.
            result.location = step.node.step.location
        if work.key is not None:
            self.facts.append(_end_of_sample(path, result))
        self._checks.append(step)
        if isinstance(step.verdict, Cancels) and isinstance(result, FlowForgeError):
            # It failed by itself before the cancel reached it: that is told, too.
            step.verdict = Fails(result)
        elif step.verdict is None:
            if result is None:
                raise InternalError("IN505", f"{path!r} was stopped, and nothing asked for it")
            end = WorkEnd(work.key, result)
            rules, verb = rules_of(step.node.step.verb), step.node.step.verb
            self._react(step, lambda: rules.work_ended(verb, self._context(step), step.memory, end))

    def timer_fired(self, name: str) -> None:
        """A timer's time has come; one that was stopped meanwhile is nobody's any more."""
        timer = self.state.timers.pop(name, None)
        if timer is None:
            return
        step = timer.step
        step.timers.remove(name)
        match timer.purpose:
            case "timeout":
                self._decide(step, Fails(_timed_out(step)))
            case "backoff":
                self._try(step)
            case "wait":
                rules, verb = rules_of(step.node.step.verb), step.node.step.verb
                self._react(step, lambda: rules.elapsed(verb, self._context(step), step.memory))
            case "finally":
                step.failures.append(Failure(step.attempt_path, _endless_finally(step)))
                for scope in list(step.scopes.values()):
                    self.stop_scope(scope)
            case _:
                assert_never(timer.purpose)

    def _work(self, path: str) -> Work:
        work = self.state.works.get(path)
        if work is None:
            raise InternalError("IN505", f"a report names {path!r}, which is not in flight")
        return work

    # -- scopes -----------------------------------------------------------------------------------

    def open_scope(self, scope: ScopeState) -> None:
        """Make the instances of a block; those that wait for nobody are ready."""
        if scope.owner is not None:
            scope.owner.scopes[scope.key] = scope
        for name, node in scope.graph.nodes.items():
            path = scope.prefix + name
            step = StepState(path, node, scope, num_awaited=len(node.step.needs))
            scope.steps[name] = self.state.steps[path] = step
        scope.num_unfinished = len(scope.steps)
        for step in scope.steps.values():
            for name in step.node.continues:
                scope.find_step(name).num_claims += 1
            if step.num_awaited == 0:
                self._make_ready(step)
        self._checks.append(scope)

    def stop_scope(self, scope: ScopeState) -> None:
        """Nothing new starts in it, and what runs is cancelled."""
        if scope.is_stopping or scope.is_closed:
            return
        scope.is_stopping = True
        # Last first: what is inside a branch is told before the step around it.
        for step in reversed(list(scope.steps.values())):
            if step.status is Status.WAITING:
                step.move("cancel")
                drop_claims(self, step)
            elif step.status is Status.RUNNING:
                self._cancel(step)
        self._checks.append(scope)

    def _check_scope(self, scope: ScopeState) -> None:
        if scope.is_closed or not scope.is_over:
            return
        owner = scope.owner
        scope.is_closed = True
        if owner is None:
            return
        del owner.scopes[scope.key]
        owner.failures += scope.failures
        self._checks.append(owner)
        if owner.verdict is None:
            self._take_branch(owner, scope)
        # Its values live on in the owner; its instances need not, however many items there are.
        for step in scope.steps.values():
            del self.state.steps[step.path]

    def _take_branch(self, owner: StepState, scope: ScopeState) -> None:
        verb = owner.node.step.verb
        match owner.stage:
            case Stage.TRY:
                end = BranchEnd(scope.key, scope.prefix[:-1], scope, tuple(scope.failures))
                self._react(
                    owner,
                    lambda: rules_of(verb).branch_ended(
                        verb, self._context(owner), owner.memory, end
                    ),
                )
            case Stage.CATCH:
                catch = owner.node.step.catch
                assert catch is not None
                assert isinstance(catch.body, Block)
                self._conclude_with(owner, catch.body.result.evaluate, scope)
            case Stage.FINALLY:
                assert owner.pending is not None
                owner.verdict = Fails() if owner.failures else owner.pending
            case Stage.BACKOFF:
                raise InternalError("IN506", f"step {owner.path!r} had a branch while it waited")

    # -- the stages of a step ---------------------------------------------------------------------

    def _make_ready(self, step: StepState) -> None:
        self.state.num_queued += 1
        heappush(self.state.ready, (-step.node.step.priority, self.state.num_queued, step))

    def _start(self, step: StepState) -> None:
        when = step.node.step.when
        try:
            is_wanted = when is None or holds(when, step.scope)
        except FlowForgeError as error:
            self._begin(step)
            self._decide(step, Fails(error))
            return
        if is_wanted and self._has_sources(step):
            self._begin(step)
            self._try(step)
            return
        step.move("skip")
        self.facts.append(StepSkipped(step.path))
        drop_claims(self, step)
        self._tell_dependents(step)

    def _has_sources(self, step: StepState) -> bool:
        verb = step.node.step.verb
        names = rules_of(verb).continues(verb)
        return all(step.scope.find_step(name).conversation is not None for name in names)

    def _begin(self, step: StepState) -> None:
        step.move("start")
        step.scope.num_running += 1
        step.attempt = 1
        self._tell_start(step)

    def _tell_start(self, step: StepState) -> None:
        rules, verb = rules_of(step.node.step.verb), step.node.step.verb
        continued = [step.scope.find_step(name).conversation for name in rules.continues(verb)]
        first = continued[0] if continued else None
        self.facts.append(StepStarted(step.attempt_path, rules.word, first))

    def _try(self, step: StepState) -> None:
        if step.stage is Stage.BACKOFF:
            self._tell_start(step)
        step.stage = Stage.TRY
        step.memory = None
        step.failures = []
        step.num_forking = 0
        if step.node.step.timeout_s is not None:
            self._start_timer(step, "timeout", step.node.step.timeout_s)
        rules, verb = rules_of(step.node.step.verb), step.node.step.verb
        self._react(step, lambda: rules.start(verb, self._context(step)))

    def _decide(self, step: StepState, verdict: Verdict) -> None:
        """What the stage comes to; the first verdict stands."""
        if step.verdict is None:
            step.verdict = verdict
            self._stop_inside(step)

    def _conclude_with(
        self,
        step: StepState,
        evaluate: Callable[[Mapping[str, JsonValue]], JsonValue],
        scope: Mapping[str, JsonValue],
    ) -> None:
        try:
            self._decide(step, Finish(evaluate(scope), has_conversation=False))
        except FlowForgeError as error:
            self._decide(step, Fails(error))

    def _cancel(self, step: StepState) -> None:
        """Somebody outside wants it gone: only a `finally` is still allowed its time."""
        step.is_cancelled = True
        if step.stage is not Stage.FINALLY:
            step.verdict = Cancels()
            self._stop_inside(step)

    def _stop_inside(self, step: StepState) -> None:
        self._stop_timers(step)
        self.commands += [Stop(path) for path in sorted(step.works)]
        for scope in list(step.scopes.values()):
            self.stop_scope(scope)
        self._checks.append(step)

    def _check_step(self, step: StepState) -> None:
        if step.status is not Status.RUNNING or step.verdict is None or step.is_busy:
            return
        verdict, step.verdict = step.verdict, None
        if step.stage is Stage.FINALLY:
            self._end(step, verdict)
        elif isinstance(verdict, Fails) and step.stage is Stage.TRY and not step.is_cancelled:
            self._after_failure(step, verdict)
        else:
            self._finally(step, verdict)

    def _after_failure(self, step: StepState, verdict: Fails) -> None:
        failures = _failures(step, verdict)
        first = failures[0].error
        release_all(self, step)
        retry, catch = step.node.step.retry, step.node.step.catch
        is_transient = all(may_pass_later(failure.error) for failure in failures)
        if retry is not None and step.attempt < retry.attempts and is_transient:
            delay_s = backoff_s(retry, step.attempt, self.state.seed, step.attempt_path)
            failed = _step_failed(step, failures)
            step.attempt += 1
            self.facts.append(
                StepRetried(
                    failed.path,
                    failed.code,
                    failed.message,
                    failed.help,
                    step.attempt_path,
                    delay_s,
                )
            )
            step.stage = Stage.BACKOFF
            self._start_timer(step, "backoff", delay_s)
        elif catch is not None and (not catch.codes or first.code.startswith(catch.codes)):
            self._catch(step, failures)
        else:
            self._finally(step, verdict)

    def _catch(self, step: StepState, failures: list[Failure]) -> None:
        catch = step.node.step.catch
        assert catch is not None
        failed = _step_failed(step, failures)
        self.facts.append(StepCaught(failed.path, failed.code, failed.message, failed.help))
        step.stage = Stage.CATCH
        step.failures = []
        variables: dict[str, JsonValue] = {catch.variable: error_value(failures[0])}
        if isinstance(catch.body, Block):
            self._open_body(step, OpenBranch(CATCH, CATCH, CATCH, variables, is_last=True))
        else:
            scope = Layered(variables, step.scope)
            self._conclude_with(step, catch.body.evaluate, scope)

    def _finally(self, step: StepState, verdict: Verdict) -> None:
        if step.node.step.finally_block is None:
            self._end(step, verdict)
            return
        # What the `finally` adds to failures must not hide them, and those that did not matter go.
        step.failures = _failures(step, verdict) if isinstance(verdict, Fails) else []
        if isinstance(verdict, Fails):
            verdict = Fails()
        step.stage = Stage.FINALLY
        step.pending = verdict
        self._start_timer(step, "finally", FINALLY_LIMIT_S)
        self._open_body(step, OpenBranch(FINALLY, FINALLY, FINALLY, {}, is_last=True))

    def _end(self, step: StepState, verdict: Verdict) -> None:
        self._stop_timers(step)
        step.scope.num_running -= 1
        self._checks.append(step.scope)
        if isinstance(verdict, Finish) and not step.is_cancelled:
            self._finish(step, verdict)
        elif isinstance(verdict, Fails):
            self._fail(step, verdict)
        else:
            step.move("cancel")
            self.facts.append(StepCancelled(step.attempt_path))
            release_all(self, step)
            drop_claims(self, step)

    def _finish(self, step: StepState, finish: Finish) -> None:
        step.move("finish")
        step.value = finish.value
        path = step.attempt_path
        self.facts.append(StepFinished(path, finish.value, finish.finish_reason, finish.usage))
        kept = _work_path(path, finish.key) if finish.has_conversation else None
        keep_only(self, step, kept)
        drop_claims(self, step)
        self._tell_dependents(step)

    def _fail(self, step: StepState, verdict: Fails) -> None:
        failures = _failures(step, verdict)
        step.move("fail")
        self.facts.append(_step_failed(step, failures))
        release_all(self, step)
        drop_claims(self, step)
        scope = step.scope
        scope.failures += failures
        self.stop_scope(scope)
        owner = scope.owner
        if owner is None or owner.stage is Stage.FINALLY:
            return
        verb = owner.node.step.verb
        if owner.stage is Stage.CATCH or rules_of(verb).fails_fast(verb):
            self._decide(owner, Fails())

    def _tell_dependents(self, step: StepState) -> None:
        scope = step.scope
        scope.num_unfinished -= 1
        self._checks.append(scope)
        for name in step.node.dependents:
            dependent = scope.steps[name]
            dependent.num_awaited -= 1
            if dependent.num_awaited == 0 and dependent.status is Status.WAITING:
                self._make_ready(dependent)

    # -- what a verb asks for ---------------------------------------------------------------------

    def _react(self, step: StepState, rule: Callable[[], Reaction]) -> None:
        """Apply a verb's rule; what it raises fails the try."""
        try:
            reaction = rule()
        except FlowForgeError as error:
            self._decide(step, Fails(error))
            return
        step.memory = reaction.memory
        for action in reaction.actions:
            self._act(step, action)

    def _act(self, step: StepState, action: Action) -> None:
        path = step.attempt_path
        match action:
            case Generate():
                self._generate(step, action)
            case Invoke():
                self._add_work(step, path, None)
                self.commands.append(StartCall(path, action.tool, action.arguments))
            case Question():
                self._add_work(step, path, None)
                self.facts.append(StepAsked(path, action.prompt, action.choices, action.show))
                self.commands.append(
                    StartQuestion(path, action.prompt, action.choices, action.show)
                )
            case Wait():
                self._start_timer(step, "wait", action.delay_s)
            case OpenBranch():
                self._open_body(step, action)
                if action.is_last and not step.may_fork_again:
                    drop_claims(self, step)
            case Finish():
                self._decide(step, action)
            case _:
                assert_never(action)

    def _generate(self, step: StepState, action: Generate) -> None:
        path = _work_path(step.attempt_path, action.key)
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
        request = replace(action.request, priority=step.node.step.priority)
        self._add_work(step, path, action.key)
        if continues != path:
            hold(step, path)
        if action.key is not None:
            self.facts.append(StepStarted(path, "gen", continues))
        self.commands.append(StartGeneration(path, continues, system, action.said, request))

    def _add_work(self, step: StepState, path: str, key: int | None) -> None:
        step.works.add(path)
        self.state.works[path] = Work(step, key)

    def _open_body(self, step: StepState, branch: OpenBranch) -> None:
        outer = step.scope if branch.tools is None else None
        tools: Mapping[str, ToolSpec] = step.scope.tools if branch.tools is None else branch.tools
        graph = step.node.bodies[branch.body]
        prefix = f"{step.attempt_path}{branch.segment}/"
        self.open_scope(ScopeState(branch.key, prefix, graph, branch.variables, tools, outer, step))

    def _context(self, step: StepState) -> StepContext:
        state, scope = self.state, step.scope
        return StepContext(
            step.attempt_path, step.attempt, scope, state.validate, state.seed, scope.tools
        )

    def _start_timer(
        self,
        step: StepState,
        purpose: Literal["timeout", "backoff", "wait", "finally"],
        delay_s: float,
    ) -> None:
        name = f"{step.attempt_path}:{purpose}"
        step.timers.add(name)
        self.state.timers[name] = Timer(step, purpose)
        self.commands.append(StartTimer(name, delay_s))

    def _stop_timers(self, step: StepState) -> None:
        for name in sorted(step.timers):
            del self.state.timers[name]
            self.commands.append(StopTimer(name))
        step.timers.clear()


def _work_path(path: str, key: int | None) -> str:
    return path if key is None else f"{path}[{key}]"


def _failures(step: StepState, verdict: Fails) -> list[Failure]:
    """The step's own failure, if it has one, before those of its branches."""
    own = [] if verdict.error is None else [Failure(step.attempt_path, verdict.error)]
    return [*own, *step.failures]


def _step_failed(step: StepState, failures: list[Failure]) -> StepFailed:
    first, path = failures[0], step.attempt_path
    error = first.error
    message = error.message if first.path == path else f"{first.path!r} failed: {error.message}"
    return StepFailed(path, error.code, message, error.help)


def _end_of_sample(
    path: str, result: GenerationDone | ReturnedValue | FlowForgeError | None
) -> Fact:
    if result is None:
        return StepCancelled(path)
    if isinstance(result, FlowForgeError):
        return StepFailed(path, result.code, result.message, result.help)
    assert isinstance(result, GenerationDone)
    return StepFinished(path, result.text, result.finish_reason, result.usage)


def _timed_out(step: StepState) -> WorkflowError:
    return WorkflowError(
        TIMED_OUT,
        f"step {step.attempt_path!r} did not end within its timeout of "
        f"{step.node.step.timeout_s:g} s",
        location=step.node.step.location,
        help="raise 'timeout', or say what follows by 'retry' or 'catch'",
    )


def _endless_finally(step: StepState) -> WorkflowError:
    return WorkflowError(
        "WF515",
        f"the 'finally' of step {step.attempt_path!r} did not end within {FINALLY_LIMIT_S:g} s",
        location=step.node.step.location,
    )
