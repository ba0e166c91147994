"""The verbs without blocks that ask no model: `set`, `call`, `ask`; and `run`, another program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import FlowForgeError, WorkflowError
from flowforge.language.inputs import resolve_inputs
from flowforge.language.program import Ask, Call, Run, Set
from flowforge.runtime.verbs.rules import (
    Finish,
    Invoke,
    OpenBranch,
    Question,
    Reaction,
    ReturnedValue,
    VerbRules,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue, Step
    from flowforge.runtime.verbs.rules import BranchEnd, StepContext, WorkEnd


class SetRules(VerbRules[Set]):
    """Computes a value."""

    word = "set"

    def start(self, verb: Set, context: StepContext) -> Reaction:
        """Compute it."""
        return Reaction(None, (Finish(verb.value.evaluate(context.scope)),))


class CallRules(VerbRules[Call]):
    """Runs a tool."""

    word = "call"

    def start(self, verb: Call, context: StepContext) -> Reaction:
        """Compute the arguments."""
        arguments = {name: value.evaluate(context.scope) for name, value in verb.arguments.items()}
        call = Invoke(context.tools[verb.tool], arguments, member=verb.member)
        return Reaction(None, (call,))

    def work_ended(
        self, verb: Call, context: StepContext, memory: object, end: WorkEnd
    ) -> Reaction:
        """Take what the tool returned."""
        del verb, context
        return Reaction(memory, (Finish(_returned(end)),))


class AskRules(VerbRules[Ask]):
    """Asks a person, for a limited time if the author says so."""

    word = "ask"

    def start(self, verb: Ask, context: StepContext) -> Reaction:
        """Put the question."""
        show = None if verb.show is None else verb.show.evaluate(context.scope)
        question = Question(verb.prompt.render(context.scope), verb.choices, show)
        wait = () if verb.timeout_s is None else (Wait(verb.timeout_s),)
        return Reaction(None, (question, *wait))

    def work_ended(self, verb: Ask, context: StepContext, memory: object, end: WorkEnd) -> Reaction:
        """Take the answer, if it is one of the choices."""
        answer = _returned(end)
        if verb.choices and answer not in verb.choices:
            raise WorkflowError(
                "WF531",
                f"{context.path!r} was answered {answer!r}, expected one of "
                + ", ".join(map(repr, verb.choices)),
            )
        return Reaction(memory, (Finish(answer),))

    def elapsed(self, verb: Ask, context: StepContext, memory: object) -> Reaction:
        """Nobody answered in time."""
        if verb.on_timeout is None:
            raise WorkflowError(
                "WF504",
                f"nobody answered {context.path!r} within {verb.timeout_s:g} s",
                help="say what follows then by 'on_timeout'",
            )
        return Reaction(memory, (Finish(verb.on_timeout),))


class RunRules(VerbRules[Run]):
    """Runs another program, which sees its inputs and nothing else."""

    word = "run"

    def bodies(self, verb: Run) -> Mapping[str, Mapping[str, Step]]:
        """The steps of the program."""
        return {"": verb.program.steps}

    def start(self, verb: Run, context: StepContext) -> Reaction:
        """Compute its inputs."""
        given = {name: value.evaluate(context.scope) for name, value in verb.arguments.items()}
        inputs = resolve_inputs(verb.program, given)
        branch = OpenBranch("", "", "", {"inputs": inputs}, is_last=True, tools=verb.program.tools)
        return Reaction(None, (branch,))

    def branch_ended(
        self, verb: Run, context: StepContext, memory: object, end: BranchEnd
    ) -> Reaction:
        """The value is the object of its outputs."""
        del context
        outputs: dict[str, JsonValue] = {
            name: output.value.evaluate(end.scope) for name, output in verb.program.outputs.items()
        }
        return Reaction(memory, (Finish(outputs),))


def _returned(end: WorkEnd) -> JsonValue:
    if isinstance(end.result, FlowForgeError):
        raise end.result
    assert isinstance(end.result, ReturnedValue)
    return end.result.value
