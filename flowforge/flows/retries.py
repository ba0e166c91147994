"""A turn that is tried again: each try is a step of its own, as in workflow files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio

from flowforge.errors import FlowForgeError, WorkflowError
from flowforge.flows.durations import seconds_of
from flowforge.flows.rounds import require_count
from flowforge.language import program
from flowforge.language.relaxation import relaxed_retry
from flowforge.runtime.events import StepCancelled
from flowforge.runtime.retries import backoff_s, is_worth_trying

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from flowforge.flows.session import FlowSession

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a turn is tried, and how long to wait before each further try.

    attempts: tries in all. backoff: before the second, seconds or a text like '2s'; each further
    wait is `factor` times the one before, at most `max_backoff`. jitter: "full" waits a random part
    of that, so that branches that failed together do not come back together.
    Only failures that may pass are tried again: of the engine, of a tool, and answers that were
    cut off, have not their form, or are refused by the type's own validators or by a hook.
    Raises WorkflowError WF120 for a duration, WF607 for a number out of range.
    """

    attempts: int
    backoff: str | float = 1.0
    factor: float = 2.0
    max_backoff: str | float = 60.0
    jitter: Literal["full", "none"] = "full"

    def __post_init__(self) -> None:
        require_count("attempts", self.attempts)
        if not 1 <= self.factor <= 100:
            raise WorkflowError("WF607", f"factor must be from 1 to 100, got {self.factor}")
        self.spec()

    def spec(self) -> program.Retry:
        """The same as workflow files say it."""
        return program.Retry(
            self.attempts,
            seconds_of(self.backoff),
            self.factor,
            seconds_of(self.max_backoff),
            self.jitter,
        )


@dataclass(frozen=True, slots=True)
class NextTry:
    """What follows a try that fails: the path of the next, and the wait before it."""

    path: str
    delay_s: float
    retry: program.Retry

    def is_for(self, error: FlowForgeError) -> bool:
        """Whether it follows a try that failed so."""
        return is_worth_trying(self.retry, error)


def spec_of_retry(retry: Retry | int, *, is_relaxed: bool) -> program.Retry:
    """What `retry` says: a number stands for that many attempts.

    is_relaxed: whether an answer that breaks its schema is asked for again, as it is without a word
    on retries.
    """
    if not is_relaxed:
        return (Retry(retry) if isinstance(retry, int) else retry).spec()
    return relaxed_retry(None if retry == 1 else spec_of_retry(retry, is_relaxed=False))


async def with_retries(
    session: FlowSession,
    path: str,
    spec: program.Retry,
    attempt: Callable[[str, NextTry | None], Awaitable[T]],
) -> T:
    """Try until one try succeeds, the last has failed, or a failure will not pass.

    attempt: tells how its step ends, by the path that it is given; a failure that has a next try is
    told as `StepRetried`.
    """
    number, attempt_path = 1, path
    while number < spec.attempts:
        delay_s = backoff_s(spec, number, session.seed, attempt_path)
        number += 1
        following = NextTry(f"{path}#{number}", delay_s, spec)
        try:
            return await attempt(attempt_path, following)
        except FlowForgeError as error:
            if not following.is_for(error):
                raise
        attempt_path = following.path
        try:
            await session.clock.sleep(delay_s)
        except anyio.get_cancelled_exc_class():
            session.stream.emit(StepCancelled(attempt_path))
            raise
    return await attempt(attempt_path, None)
