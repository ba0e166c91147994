"""Calls with effects that had begun when a run was cut, and may have done their work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from flowforge.errors import WorkflowError
from flowforge.runtime.commands import StartQuestion
from flowforge.runtime.events import StepAsked

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.runtime.commands import StartCall
    from flowforge.runtime.events import Fact
    from flowforge.runtime.people import Asker

UNCERTAIN = "WF703"

OnUncertain = Literal["ask", "retry", "fail"]

_RUN_AGAIN, _IS_DONE, _FAIL = "run it again", "it is done", "fail"


async def may_run_again(
    command: StartCall, policy: OnUncertain, asker: Asker, tell: Callable[[Fact], None]
) -> bool:
    """Whether the call is to be made again; False where somebody says that it did its work.

    tell: hands the question on as an event. Raises WorkflowError WF703 where nobody says, or the
    policy is to fail.
    """
    if policy == "ask":
        prompt = f"{_reason(command)}: shall it run again?"
        choices = (_RUN_AGAIN, _IS_DONE, _FAIL)
        show = dict(command.arguments)
        tell(StepAsked(command.path, prompt, choices, show))
        try:
            choice = await asker(StartQuestion(command.path, prompt, choices, show))
        except WorkflowError as error:
            raise _uncertain(command) from error
        if choice in {_RUN_AGAIN, _IS_DONE}:
            return choice == _RUN_AGAIN
    elif policy == "retry":
        return True
    raise _uncertain(command)


def _uncertain(command: StartCall) -> WorkflowError:
    return WorkflowError(
        UNCERTAIN,
        _reason(command),
        location=command.tool.location,
        help="look whether it has, then resume with --on-uncertain retry, or on a terminal",
    )


def _reason(command: StartCall) -> str:
    return (
        f"tool {command.tool.name!r} of step {command.path!r} had been started when the run was "
        "cut, and may have done its work"
    )
