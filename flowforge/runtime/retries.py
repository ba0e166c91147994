"""Which failures are worth another try, and how long to wait before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import EngineError, FlowForgeError, ToolError
from flowforge.runtime.seeds import derived_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.language.program import Retry
    from flowforge.runtime.state import Failure

TIMED_OUT = "WF504"
NOT_JOINED = "WF507"
_OTHER_ANSWER = frozenset(
    {"WF412", "WF413", "WF418", "WF424", "WF427", "WF433", "WF434", "WF501", "WF508", "WF513"}
    | {"WF603"}
)
"""Of answers: not JSON, against the schema, outgrew the constraint, calls in too many turns,
blocked by a hook, outside the grammar, too long to parse, cut off, not enough for a loop in its
rounds, none of the choices, refused by validators. Each try has a seed of its own: another answer
may do."""
_PERMANENT = (
    *("EN101", "EN102", "EN105", "EN11", "EN12", "EN13"),
    *("EN20", "EN210", "EN230", "EN231", "EN233", "EN234", "EN235", "EN236", "EN237"),
    *("EN3", "EN402", "EN404", "EN405", "EN407", "EN410"),
    *("TL1", "TL302"),
)
"""How codes begin that every try would meet again: a model that is not there or cannot be computed,
a request that no engine takes or that cannot fit, settings of the engine, one that has lost a
process, a tokenizer or template that cannot be used, a server that refuses, a tool that cannot be
called as it is asked to. Left are what was out of reach, memory or order, and what a tool says."""


def may_pass_later(error: FlowForgeError) -> bool:
    """Whether the same step, tried again, may succeed: never for what its author has to change."""
    # A join that was not met: the failures of its branches, which come with it, decide.
    if error.code in {TIMED_OUT, NOT_JOINED} or error.code in _OTHER_ANSWER:
        return True
    return isinstance(error, EngineError | ToolError) and not error.code.startswith(_PERMANENT)


def lacks_branches(own: FlowForgeError | None, failures: Sequence[Failure]) -> bool:
    """Whether a join was given fewer branches than it needs, which every try would be.

    own: the step's own error. failures: of its branches; none has run when it is decided that there
    are too few.
    """
    return own is not None and own.code == NOT_JOINED and not failures


def is_worth_trying(retry: Retry, error: FlowForgeError) -> bool:
    """Whether a failure is one that this retry is for."""
    return error.code in retry.codes or (retry.is_for_faults and may_pass_later(error))


def backoff_s(retry: Retry, num_tries: int, seed: int, path: str) -> float:
    """Seconds between try `num_tries` and the next.

    Full jitter (Brooker, "Exponential Backoff and Jitter", AWS 2015): any part of the wait, so
    that branches that failed together do not come back together.
    """
    # A factor to a large power is no float any more; the limit holds long before that.
    try:
        wait_s = min(retry.max_s, retry.backoff_s * retry.factor ** (num_tries - 1))
    except OverflowError:
        wait_s = retry.max_s
    return wait_s * derived_fraction(seed, f"backoff {path}") if retry.jitter == "full" else wait_s
