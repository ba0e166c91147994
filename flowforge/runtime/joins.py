"""Join policies: when enough branches have ended, and what they come to.

Pure and independent of the order in which branches end, but for `First` and `Quorum`, which are
about that order. Results are in the order of the branches, never in that of completion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, assert_never

from flowforge.errors import WorkflowError
from flowforge.language.join_policies import All, Best, First, Quorum, Settle, Vote
from flowforge.language.json_values import json_equal, kind_of_value
from flowforge.runtime.layers import Layered
from flowforge.runtime.retries import NOT_JOINED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.language.expressions import Expression
    from flowforge.language.join_policies import Join
    from flowforge.language.program import JsonValue
    from flowforge.runtime.state import Failure

KeyT = TypeVar("KeyT")


@dataclass(frozen=True, slots=True)
class Value:
    """A branch that succeeded."""

    value: JsonValue


End: TypeAlias = "Value | Failure"


@dataclass(frozen=True, slots=True)
class Joined(Generic[KeyT]):
    """The branches that make up the result, in order, with what each contributes.

    A policy that picks one value gives exactly one.
    """

    values: tuple[tuple[KeyT, JsonValue], ...]


def picks_one(join: Join) -> bool:
    """Whether the result is the value of one branch, not a collection."""
    return isinstance(join, First | Best | Vote)


def needs_all(join: Join) -> bool:
    """Whether the result depends on every branch, so that there is none before the last end."""
    return isinstance(join, All | Settle | Best)


def join_branches(
    join: Join,
    branches: Sequence[KeyT],
    ends: Mapping[KeyT, End],
    scope: Mapping[str, JsonValue],
) -> Joined[KeyT] | None:
    """The result, or None while it depends on branches that have not ended.

    branches: all there will be, in order. ends: of those that have ended. scope: for scores.
    Raises WorkflowError WF507 when the policy cannot be met any more, WF506 for a bad score.
    """
    ended = [(branch, ends[branch]) for branch in branches if branch in ends]
    values = [(branch, end.value) for branch, end in ended if isinstance(end, Value)]
    num_open = len(branches) - len(ended)
    match join:
        case All():
            return None if num_open else Joined(tuple(values))
        case Settle():
            return None if num_open else Joined(tuple((key, settled(end)) for key, end in ended))
        case First():
            return _quorum("first", 1, values, len(ended), num_open)
        case Quorum(count):
            return _quorum(f"quorum: {count}", count, values, len(ended), num_open)
        case Best(score):
            return None if num_open else Joined((_best(score, values, len(ended), scope),))
        case Vote():
            return _vote(values, len(ended), num_open)
        case _:
            assert_never(join)


def error_value(failure: Failure) -> dict[str, JsonValue]:
    """A failure as authors see it."""
    error = failure.error
    return {
        "code": error.code,
        "message": error.message,
        "path": failure.path,
        "help": error.help,
    }


def settled(end: End) -> JsonValue:
    """What `settle` says of a branch."""
    if isinstance(end, Value):
        return {"ok": True, "value": end.value, "error": None}
    return {"ok": False, "value": None, "error": error_value(end)}


def _quorum(
    word: str, count: int, values: list[tuple[KeyT, JsonValue]], num_ended: int, num_open: int
) -> Joined[KeyT] | None:
    if len(values) >= count:
        return Joined(tuple(values[:count]))
    if len(values) + num_open < count:
        raise _out_of_reach(word, count, len(values), num_ended + num_open)
    return None


def _best(
    score: Expression,
    values: list[tuple[KeyT, JsonValue]],
    num_ended: int,
    scope: Mapping[str, JsonValue],
) -> tuple[KeyT, JsonValue]:
    if not values:
        raise _out_of_reach("best", 1, 0, num_ended)
    scores = [_score(score, value, scope) for _, value in values]
    return values[scores.index(max(scores))]


def _score(score: Expression, value: JsonValue, scope: Mapping[str, JsonValue]) -> float:
    result = score.evaluate(Layered({"value": value}, scope))
    if isinstance(result, bool) or not isinstance(result, int | float):
        raise WorkflowError(
            "WF506",
            f"a score is {kind_of_value(result)}, expected a number",
            location=score.location,
            help="'best' takes the value with the highest number",
        )
    return result


def _vote(
    values: list[tuple[KeyT, JsonValue]], num_ended: int, num_open: int
) -> Joined[KeyT] | None:
    tally: list[tuple[tuple[KeyT, JsonValue], int]] = []
    for candidate in values:
        for idx, (leader, votes) in enumerate(tally):
            if json_equal(leader[1], candidate[1]):
                tally[idx] = (leader, votes + 1)
                break
        else:
            tally.append((candidate, 1))
    if not tally:
        if num_open == 0:
            raise _out_of_reach("vote", 1, 0, num_ended)
        return None
    tally.sort(key=lambda entry: -entry[1])
    runner_up = tally[1][1] if len(tally) > 1 else 0
    # Strictly ahead of whatever the open branches may say: a tie depends on who is earliest.
    if num_open and tally[0][1] <= runner_up + num_open:
        return None
    return Joined((tally[0][0],))


def _out_of_reach(word: str, num_needed: int, num_ok: int, num_branches: int) -> WorkflowError:
    need = f"'{word}' cannot be met: it needs {num_needed} that succeed, and "
    if num_branches < num_needed:
        noun = "branch" if num_branches == 1 else "branches"
        return WorkflowError(
            NOT_JOINED,
            f"{need}there {'is' if num_branches == 1 else 'are'} {num_branches} {noun}",
            help="give it a list with more items, ask for fewer, or skip the step with 'when'",
        )
    return WorkflowError(
        NOT_JOINED,
        f"{need}{num_ok} did",
        help="the failures of the branches say why; 'catch' can go on without a result",
    )
