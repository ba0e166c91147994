"""People whom a run asks: on a terminal, from a prepared table, or nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from flowforge.backends.labels import matching_key
from flowforge.errors import WorkflowError
from flowforge.language.json_values import problem_with_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from flowforge.runtime.commands import StartQuestion

    Asker: TypeAlias = Callable[[StartQuestion], Awaitable[str]]
    """Puts one question and returns the answer; cancelled when the answer is no longer needed."""


def text_answer(path: str, answer: object) -> str:
    """The answer of a person. Raises WorkflowError WF532 for what is no text."""
    if not isinstance(answer, str):
        problem: str | None = f"it is a Python {type(answer).__name__}"
    elif (problem := problem_with_text(answer)) is None:
        return answer
    raise WorkflowError("WF532", f"the answer to {path!r} is no text: {problem}")


async def nobody(question: StartQuestion) -> str:
    """Refuse to answer."""
    raise WorkflowError(
        "WF530",
        f"step {question.path!r} asks a person, and nobody is there to answer",
        help="run it on a terminal, give the answers by --answers FILE, or let it wait for "
        "'flowforge answer': --wait-for-answers, or --detach",
    )


class PreparedAnswers:
    """Answers by step path; `*` in a path matches any text, the exact path goes first.

    otherwise: who answers what the table does not.
    """

    def __init__(self, answers: Mapping[str, str], otherwise: Asker = nobody) -> None:
        self._answers = answers
        self._otherwise = otherwise

    async def __call__(self, question: StartQuestion) -> str:
        """The prepared answer. Raises WorkflowError WF530 when nobody has one."""
        key = matching_key(self._answers, question.path)
        return await self._otherwise(question) if key is None else self._answers[key]
