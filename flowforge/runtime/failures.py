"""Failures: what a step's come to together, what events tell of one, and those of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import FlowForgeError, InternalError, WorkflowError
from flowforge.runtime.events import StepFailed
from flowforge.runtime.retries import TIMED_OUT
from flowforge.runtime.state import Failure

if TYPE_CHECKING:
    from flowforge.runtime.state import Fails, StepState

FINALLY_LIMIT_S = 60.0
"""How long a `finally` may take; nothing else can end it, so something must."""


def failures_of(step: StepState, verdict: Fails) -> list[Failure]:
    """The step's own failure, if it has one, before those of its branches."""
    own = [] if verdict.error is None else [Failure(step.attempt_path, verdict.error)]
    return [*own, *step.failures]


def failure_event(failure: Failure) -> StepFailed:
    """A failure as an event tells it."""
    error = failure.error
    return StepFailed(failure.path, error.code, error.message, error.help)


def step_failed(step: StepState, failures: list[Failure]) -> StepFailed:
    """The event of a step that failed by the first of these, be it its own or a branch's."""
    first, path = failures[0], step.attempt_path
    error = first.error
    message = error.message if first.path == path else f"{first.path!r} failed: {error.message}"
    return StepFailed(path, error.code, message, error.help)


def as_flowforge_error(error: Exception) -> FlowForgeError:
    """The error itself, or IN508 around what only a fault of ours or of a backend can raise."""
    if isinstance(error, FlowForgeError):
        return error
    wrapped = InternalError(
        "IN508",
        f"{type(error).__name__}: {error}",
        help="this is a fault in FlowForge or in its backend; --traceback shows where",
    )
    wrapped.__cause__ = error
    return wrapped


def timed_out(step: StepState) -> WorkflowError:
    """WF504: its timeout has passed."""
    return WorkflowError(
        TIMED_OUT,
        f"step {step.attempt_path!r} did not end within its timeout of "
        f"{step.node.step.timeout_s:g} s",
        location=step.node.step.location,
        help="raise 'timeout', or say what follows by 'retry' or 'catch'",
    )


def endless_finally(step: StepState) -> WorkflowError:
    """WF515: its `finally` took longer than any may."""
    return WorkflowError(
        "WF515",
        f"the 'finally' of step {step.attempt_path!r} did not end within {FINALLY_LIMIT_S:g} s",
        location=step.node.step.location,
    )
