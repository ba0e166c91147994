"""The verbs a run can carry out: their rules, one line each in `rules_of`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

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

_GEN, _CALL, _FOR_EACH, _LOOP, _IF = GenRules(), CallRules(), ForEachRules(), LoopRules(), IfRules()
_SWITCH, _PARALLEL, _RUN = SwitchRules(), ParallelRules(), RunRules()
_ASK, _SET = AskRules(), SetRules()


def rules_of(verb: Verb) -> VerbRules[Any]:
    """The rules of a verb."""
    match verb:
        case Gen():
            return _GEN
        case Call():
            return _CALL
        case ForEach():
            return _FOR_EACH
        case Loop():
            return _LOOP
        case If():
            return _IF
        case Switch():
            return _SWITCH
        case Parallel():
            return _PARALLEL
        case Run():
            return _RUN
        case Ask():
            return _ASK
        case Set():
            return _SET
        case _:
            assert_never(verb)
