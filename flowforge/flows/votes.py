"""Many answers to one prompt, and the one that most agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

import anyio

from flowforge.errors import FlowForgeError
from flowforge.flows.branches import lone_errors
from flowforge.flows.cursor import Form
from flowforge.flows.scopes import branch_path
from flowforge.flows.values import shown_value
from flowforge.language.join_policies import Vote
from flowforge.runtime.joins import Value, join_branches
from flowforge.runtime.state import Failure

if TYPE_CHECKING:
    from flowforge.flows.answers import AnswerType
    from flowforge.flows.cursor import Cursor, Turn
    from flowforge.flows.sampling import SamplingOptions
    from flowforge.runtime.joins import End, Joined

T = TypeVar("T")
StopWhen: TypeAlias = Literal["decided", "all"]
"""When to stop: as soon as the answers still to come cannot change the result, or with the last."""


async def vote(
    cursor: Cursor,
    answer: AnswerType[T],
    n: int,
    stop_when: StopWhen,
    name: str,
    options: SamplingOptions,
) -> T:
    """Let n forks of a cursor answer; the cursor goes on from the answer that won.

    An answer that fails has no vote. Raises WorkflowError WF507 when all fail.
    """
    with cursor.writing(name):
        path = cursor.scope.path(name)
        with cursor.session.step(path, "gen", cursor.last_path) as end:
            ballot = _Ballot(cursor, answer, path, n, stop_when)
            winner = await ballot.hold(options)
            end.value = ballot.values[winner]
        cursor.last_path = path
    return ballot.values[winner]


class _Ballot(Generic[T]):
    """The answers of one vote. values: of the answers that are there, by index."""

    def __init__(
        self, cursor: Cursor, answer: AnswerType[T], path: str, n: int, stop_when: StopWhen
    ) -> None:
        self.values: dict[int, T] = {}
        self._cursor = cursor
        self._answer = answer
        self._path = path
        self._n = n
        self._stop_when: StopWhen = stop_when
        self._ends: dict[int, End] = {}
        self._turns: dict[int, Turn] = {}

    async def hold(self, options: SamplingOptions) -> int:
        """The index of the answer that won, whose conversation is the cursor's now."""
        session, memo = self._cursor.session, self._cursor.session.memo
        race = None if memo is None or self._stop_when == "all" else memo.open_race(self._path)
        paths = [branch_path(self._path, idx) for idx in range(self._n)]
        decided = None if race is None else race.winner
        asked = [idx for idx, path in enumerate(paths) if decided in {None, path}]
        try:
            async with lone_errors(), anyio.create_task_group() as tasks:
                for idx in asked:
                    tasks.start_soon(self._ask, idx, options, tasks.cancel_scope)
            winner = self._winner() if decided is None else asked[0]
            if memo is not None and race is not None and decided is None:
                await memo.end_race(race, paths[winner], paths)
            async with self._cursor.trying(self._turns.pop(winner)):
                pass
        finally:
            for turn in self._turns.values():
                await session.close(turn.conversation)
        return winner

    async def _ask(self, idx: int, options: SamplingOptions, rest: anyio.CancelScope) -> None:
        session, path = self._cursor.session, branch_path(self._path, idx)
        try:
            with session.step(path, "gen", self._cursor.last_path) as end:
                turn = self._turns[idx] = await self._cursor.sample(
                    path, idx, options, Form(schema=self._answer.schema)
                )
                done = await turn.write()
                end.finish_reason, end.usage = done.finish_reason, done.usage
                value = self._answer.value_of(path, done)
                end.value = value
        except FlowForgeError as error:
            self._ends[idx] = Failure(path, error)
        else:
            self.values[idx] = value
            self._ends[idx] = Value(shown_value(value))
        if self._stop_when == "decided" and self._count() is not None:
            rest.cancel()

    def _count(self) -> Joined[int] | None:
        return join_branches(Vote(), range(self._n), self._ends, {})

    def _winner(self) -> int:
        joined = self._count()
        assert joined is not None, "all answers are in"
        return joined.values[0][0]
