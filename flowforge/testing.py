"""Tests of workflows without a model: scripted answers, people and time.

    backend = ff.testing.script({"angles": ["cost", "range"], "explore[*]/draft": "a draft"})
    report = await ff.run(analyst, backend=backend, topic="bicycles")

Nothing here loads a model or waits for a clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.lowlevel

from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.flows.values import shown_value
from flowforge.runtime.people import PreparedAnswers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue
    from flowforge.runtime.people import Asker

__all__ = ["InTurn", "VirtualClock", "calls", "in_turn", "people", "script"]


@dataclass(frozen=True, slots=True)
class InTurn:
    """Answers that are used up one by one; made by `in_turn`."""

    answers: tuple[object, ...]


Scripted: TypeAlias = object
"""An answer: a text as it is, a ScriptedAnswer, or a value, which is written as JSON."""


def in_turn(*answers: Scripted) -> InTurn:
    """One answer after the other, for a step that comes again; an error when they are used up."""
    return InTurn(answers)


def script(answers: Mapping[str, Scripted]) -> ScriptBackend:
    """A backend that answers by step path instead of a model.

    Keys: the path, in which `*` matches any text, as in `explore[*]/draft`. A step that comes
    again in its branch (`critique.2`), a later try and a sample also go by the path without the
    number. Values: a text is answered as it is; lists, dicts, numbers and pydantic models as JSON;
    `in_turn` gives one answer after the other.
    A step without an answer fails with WorkflowError WF521.
    """
    return ScriptBackend({path: _answers_of(answer) for path, answer in answers.items()})


def calls(*named: tuple[str, Mapping[str, JsonValue]], text: str = "") -> ScriptedAnswer:
    """An answer that calls tools.

        script({"agent": in_turn(calls(("weather", {"city": "Lima"})), "It is warm.")})

    named: each tool's name and its arguments. text: what is said beside the calls.
    """
    # Here and not above: what formats are made of is not needed where nobody calls.
    from flowforge.grammars.tool_formats import ToolCall

    written = tuple(ToolCall(name, arguments) for name, arguments in named)
    return ScriptedAnswer(text, calls=written)


def people(answers: Mapping[str, str]) -> Asker:
    """Who answers `ask`, for `asker=` of `ff.run`: texts by step path, with `*` as in `script`.

    A question that nobody answers fails with WorkflowError WF530.
    """
    return PreparedAnswers(answers)


class VirtualClock:
    """A run's time that passes only when everybody waits: two hours take no time.

        async with ff.start(flow, backend=backend, clock=ff.testing.VirtualClock()) as handle:
            report = await handle.result()

    What can still run does so first; then time moves to the earliest end of a `sleep`. Only what
    waits by this clock is brought forward: timeouts and pauses of the run, not `anyio.sleep`. A
    function in a worker thread counts as waiting.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        """start_s: what `now` says first."""
        self._now_s = start_s
        self._sleepers: list[_Sleeper] = []
        self._has_mover = False

    def now(self) -> float:
        """Seconds since some moment."""
        return self._now_s

    async def sleep(self, delay_s: float) -> None:
        """Return when the time has come."""
        await anyio.lowlevel.checkpoint()
        sleeper = _Sleeper(self._now_s + delay_s, anyio.Event())
        self._sleepers.append(sleeper)
        try:
            while self._now_s < sleeper.end_s:
                # One of the sleepers moves time: two would each see the other at work.
                if self._has_mover:
                    await sleeper.wakeup.wait()
                    sleeper.wakeup = anyio.Event()
                else:
                    await self._move()
        finally:
            self._sleepers.remove(sleeper)
            if self._sleepers and not self._has_mover:
                self._sleepers[0].wakeup.set()

    async def _move(self) -> None:
        self._has_mover = True
        try:
            await anyio.wait_all_tasks_blocked()
        finally:
            self._has_mover = False
        self._now_s = max(self._now_s, min(sleeper.end_s for sleeper in self._sleepers))
        for sleeper in self._sleepers:
            if sleeper.end_s <= self._now_s:
                sleeper.wakeup.set()


@dataclass(slots=True, eq=False)
class _Sleeper:
    """Who waits for what time. wakeup: set when there is something to do for it."""

    end_s: float
    wakeup: anyio.Event


def _answers_of(answer: Scripted) -> str | ScriptedAnswer | list[str | ScriptedAnswer]:
    if isinstance(answer, InTurn):
        return [_answer_of(one) for one in answer.answers]
    return _answer_of(answer)


def _answer_of(answer: Scripted) -> str | ScriptedAnswer:
    if isinstance(answer, str | ScriptedAnswer):
        return answer
    return json.dumps(shown_value(answer), ensure_ascii=False)
