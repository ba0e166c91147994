"""`if` and `switch`: one block of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.language.json_values import json_equal, json_text
from flowforge.language.program import If, Switch
from flowforge.runtime.verbs.branches import value_of_branch
from flowforge.runtime.verbs.rules import Finish, OpenBranch, Reaction, VerbRules, holds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import Block, JsonValue, Step
    from flowforge.runtime.verbs.rules import BranchEnd, StepContext

_DEFAULT = "default"


class IfRules(VerbRules[If]):
    """Runs the block that the condition chooses."""

    word = "if"

    def bodies(self, verb: If) -> Mapping[str, Mapping[str, Step]]:
        """`then`, and `else` if there is one."""
        return {key: block.steps for key, block in _blocks_of_if(verb).items()}

    def segment(self, verb: If, body: str) -> str:
        """The word of the block."""
        del verb
        return f"/{body}"

    def start(self, verb: If, context: StepContext) -> Reaction:
        """Choose."""
        key = "then" if holds(verb.condition, context.scope) else "else"
        if key not in _blocks_of_if(verb):
            return Reaction(None, (Finish(None),))
        return Reaction(None, (_only(key, self.segment(verb, key)),))

    def branch_ended(
        self, verb: If, context: StepContext, memory: object, end: BranchEnd
    ) -> Reaction:
        """The value is that of the block."""
        del context
        return Reaction(memory, (Finish(value_of_branch(_blocks_of_if(verb)[end.key], end)),))


class SwitchRules(VerbRules[Switch]):
    """Runs the block of the first case that equals the subject, else the default."""

    word = "switch"

    def bodies(self, verb: Switch) -> Mapping[str, Mapping[str, Step]]:
        """One block per case, and `default` if there is one."""
        return {key: block.steps for key, block in _blocks_of_switch(verb).items()}

    def segment(self, verb: Switch, body: str) -> str:
        """The value of the case."""
        return f"/{body if body == _DEFAULT else _word(verb.cases[int(body)].value)}"

    def start(self, verb: Switch, context: StepContext) -> Reaction:
        """Choose."""
        subject = verb.subject.evaluate(context.scope)
        for idx, case in enumerate(verb.cases):
            if json_equal(case.value, subject):
                return Reaction(None, (_only(str(idx), self.segment(verb, str(idx))),))
        if verb.default is None:
            raise WorkflowError(
                "WF509",
                f"step {context.path!r} has no case for {_word(subject)!r} and no default",
                location=verb.subject.location,
                help="add the case, or a 'default'",
            )
        return Reaction(None, (_only(_DEFAULT, self.segment(verb, _DEFAULT)),))

    def branch_ended(
        self, verb: Switch, context: StepContext, memory: object, end: BranchEnd
    ) -> Reaction:
        """The value is that of the block."""
        del context
        return Reaction(memory, (Finish(value_of_branch(_blocks_of_switch(verb)[end.key], end)),))


def _only(key: str, segment: str) -> OpenBranch:
    return OpenBranch(key, segment, key, {}, is_last=True)


def _word(value: JsonValue) -> str:
    return value if isinstance(value, str) else json_text(value)


def _blocks_of_if(verb: If) -> dict[str, Block]:
    blocks = {"then": verb.then}
    return blocks if verb.otherwise is None else {**blocks, "else": verb.otherwise}


def _blocks_of_switch(verb: Switch) -> dict[str, Block]:
    blocks = {str(idx): case.body for idx, case in enumerate(verb.cases)}
    return blocks if verb.default is None else {**blocks, _DEFAULT: verb.default}
