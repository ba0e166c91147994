"""The verbs a run can carry out: one file each, one line each in `rules_of`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowforge.errors import InternalError
from flowforge.language.program import ForEach, Gen
from flowforge.runtime.verbs.for_each import ForEachRules
from flowforge.runtime.verbs.gen import GenRules

if TYPE_CHECKING:
    from flowforge.language.program import Verb
    from flowforge.runtime.verbs.rules import VerbRules

_GEN = GenRules()
_FOR_EACH = ForEachRules()


def rules_of(verb: Verb) -> VerbRules[Any]:
    """The rules of a verb; a checked program has no others."""
    match verb:
        case Gen():
            return _GEN
        case ForEach():
            return _FOR_EACH
        case _:
            word = type(verb).__name__
            raise InternalError("IN506", f"the runtime has no rules for the verb {word}")
