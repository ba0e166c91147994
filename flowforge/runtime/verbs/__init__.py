"""The verbs a run can carry out: their rules, one line each in `_RULES`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowforge.language.program import (
    Ask,
    Call,
    ForEach,
    Gen,
    If,
    Loop,
    Parallel,
    Run,
    Set,
    Switch,
)
from flowforge.runtime.verbs.choices import IfRules, SwitchRules
from flowforge.runtime.verbs.for_each import ForEachRules
from flowforge.runtime.verbs.gen import GenRules
from flowforge.runtime.verbs.loop import LoopRules
from flowforge.runtime.verbs.parallel import ParallelRules
from flowforge.runtime.verbs.plain import AskRules, CallRules, RunRules, SetRules

if TYPE_CHECKING:
    from flowforge.language.program import Verb
    from flowforge.runtime.verbs.rules import VerbRules

_RULES: dict[type, VerbRules[Any]] = {
    Gen: GenRules(),
    Call: CallRules(),
    ForEach: ForEachRules(),
    Loop: LoopRules(),
    If: IfRules(),
    Switch: SwitchRules(),
    Parallel: ParallelRules(),
    Run: RunRules(),
    Ask: AskRules(),
    Set: SetRules(),
}


def rules_of(verb: Verb) -> VerbRules[Any]:
    """The rules of a verb."""
    return _RULES[type(verb)]
