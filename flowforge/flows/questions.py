"""A question to a person, with a limit on the time to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from flowforge.errors import WorkflowError
from flowforge.flows.branches import lone_errors
from flowforge.runtime.people import text_answer

if TYPE_CHECKING:
    from flowforge.runtime.clock import Clock
    from flowforge.runtime.commands import StartQuestion
    from flowforge.runtime.people import Asker


async def answer_in_time(
    asker: Asker,
    clock: Clock,
    question: StartQuestion,
    timeout_s: float | None,
    on_timeout: str | None,
) -> str:
    """The answer, or `on_timeout` when the time has passed.

    Raises WorkflowError WF504 when there is neither, WF531 for an answer that is no choice.
    """
    answers: list[str] = []
    async with lone_errors(), anyio.create_task_group() as tasks:

        async def count_down(limit_s: float) -> None:
            await clock.sleep(limit_s)
            tasks.cancel_scope.cancel()

        if timeout_s is not None:
            tasks.start_soon(count_down, timeout_s)
        answers.append(text_answer(question.path, await asker(question)))
        tasks.cancel_scope.cancel()
    if not answers:
        return _late_answer(question, timeout_s, on_timeout)
    if question.choices and answers[0] not in question.choices:
        raise WorkflowError(
            "WF531",
            f"{question.path!r} was answered {answers[0]!r}, expected one of "
            + ", ".join(map(repr, question.choices)),
        )
    return answers[0]


def _late_answer(question: StartQuestion, timeout_s: float | None, on_timeout: str | None) -> str:
    if on_timeout is not None:
        return on_timeout
    raise WorkflowError(
        "WF504",
        f"nobody answered {question.path!r} within {timeout_s:g} s",
        help="say what follows then by on_timeout=…",
    )
