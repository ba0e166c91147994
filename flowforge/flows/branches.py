"""Functions that run side by side, each in a branch of its own."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

import anyio

from flowforge.errors import WorkflowError
from flowforge.flows.failures import lone_error
from flowforge.flows.rounds import require_count
from flowforge.flows.scopes import SCOPE, branch_path, branch_scope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence

    from anyio.abc import TaskGroup

    from flowforge.flows.memo import Race
    from flowforge.flows.scopes import Scope
    from flowforge.flows.session import FlowSession

T = TypeVar("T")
ItemT = TypeVar("ItemT")

ForkJoin: TypeAlias = Literal["all", "first", "settle"]
"""What the failure or success of one branch means to the others.

all: the first failure cancels the rest. first: the first success cancels the rest, and it fails
only if all fail. settle: every branch comes to its own end.
"""


async def run_each(
    session: FlowSession,
    path: str,
    items: Iterable[ItemT],
    limit: int | None,
    run_one: Callable[[Scope, ItemT], Awaitable[T]],
) -> list[T]:
    """Run one branch an item, at most `limit` at a time; results in item order.

    The first failure cancels the others. A lone error is raised as it is, several as a group.
    """
    todo = list(items)
    if limit is not None:
        require_count("branches at a time", limit)
    results: dict[int, T] = {}
    waiting = iter(enumerate(todo))

    async def work() -> None:
        for idx, item in waiting:
            scope = branch_scope(path, idx)
            SCOPE.set(scope)
            try:
                results[idx] = await run_one(scope, item)
            except Exception as error:
                session.log.blame(branch_path(path, idx), error)
                raise

    num_workers = len(todo) if limit is None else min(limit, len(todo))
    async with lone_errors(), anyio.create_task_group() as tasks:
        for _ in range(num_workers):
            tasks.start_soon(work)
    return [results[idx] for idx in range(len(todo))]


class lone_errors:
    """Around a task group: an error that is alone in its group is raised as it is."""

    async def __aenter__(self) -> None:
        """Nothing to do."""

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Take the error out of its group."""
        if isinstance(error, BaseExceptionGroup):
            lone = lone_error(error)
            if lone is error:
                return
            context = lone.__context__
            try:
                raise lone
            finally:
                # Python would put the group here, as if it had come before.
                lone.__context__ = context


class BranchTask(Generic[T]):
    """A function that runs in a branch of a fork; owned by the fork's block.

    path: of the branch. error: what it failed with; None while it runs, and when it returned.
    """

    def __init__(self, path: str) -> None:
        self.path: str = path
        self.error: Exception | None = None
        self._results: list[T] = []
        self.scope: anyio.CancelScope = anyio.CancelScope()

    @property
    def is_finished(self) -> bool:
        """Whether it returned; False while it runs, and when it failed or was cancelled."""
        return bool(self._results)

    @property
    def result(self) -> T:
        """What it returned. Raises its error, or WorkflowError WF611 when it did not return."""
        if self._results:
            return self._results[0]
        if self.error is not None:
            raise self.error
        raise WorkflowError(
            "WF611",
            "a branch has no result: it still runs, or it was cancelled",
            help="read results after the 'async with chat.fork(…)' block; see is_finished",
        )

    def finish(self, result: T) -> None:
        """For the fork alone: it returned."""
        self._results.append(result)


class BranchTasks(Generic[T]):
    """The tasks of `Fork.start`: a sequence of BranchTask, in the order of their items."""

    def __init__(self, tasks: Sequence[BranchTask[T]]) -> None:
        self._tasks = tuple(tasks)

    def __iter__(self) -> Iterator[BranchTask[T]]:
        """Each task."""
        return iter(self._tasks)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._tasks)

    @property
    def results(self) -> list[T]:
        """What they returned, in order; those that did not return are left out."""
        return [task.result for task in self._tasks if task.is_finished]

    @property
    def result(self) -> T:
        """What the first of them in order returned: under join="first", the winner.

        Raises as `BranchTask.result` where none returned.
        """
        finished = [task for task in self._tasks if task.is_finished]
        return (finished or list(self._tasks))[0].result


class TaskBoard:
    """Runs the tasks of one fork under its join policy."""

    def __init__(self, session: FlowSession, join: ForkJoin, path: str) -> None:
        """path: of the fork."""
        self._path = path
        self._race: Race | None = None
        self._winner: BranchTask[object] | None = None
        self._group: TaskGroup | None = None
        self._session = session
        self._join: ForkJoin = join
        self._tasks: list[BranchTask[object]] = []

    @asynccontextmanager
    async def tasks(self) -> AsyncGenerator[None]:
        """While tasks can be started; ends when all have ended."""
        memo = self._session.memo
        if self._join == "first" and memo is not None:
            self._race = memo.open_race(self._path)
        try:
            async with lone_errors(), anyio.create_task_group() as self._group:
                yield
        finally:
            self._group = None

    def start(self, path: str, scope: Scope, run: Callable[[], Awaitable[T]]) -> BranchTask[T]:
        """Begin a task, whose branch has `path`."""
        if self._group is None:
            raise WorkflowError(
                "WF609",
                f"{path!r} was started after the end of its fork",
                help="start branches inside 'async with chat.fork(…)'",
            )
        task = BranchTask[T](path)
        has_lost = self._race is not None and self._race.winner not in {None, path}
        if self._winner is not None or has_lost:
            task.scope.cancel()
        self._tasks.append(task)  # type: ignore[arg-type]  # results are read, never written
        self._group.start_soon(self._run, path, scope, task, run)
        return task

    async def _run(
        self, path: str, scope: Scope, task: BranchTask[T], run: Callable[[], Awaitable[T]]
    ) -> None:
        SCOPE.set(scope)
        if task.scope.cancel_called:
            # Up to its first wait it would run all the same.
            return
        with task.scope:
            try:
                result = await run()
            except Exception as error:
                self._session.log.blame(path, error)
                task.error = error
                if self._join == "all":
                    raise
                return
            if self._join == "first" and not await self._wins(task):
                return
            task.finish(result)

    def results(self) -> list[object]:
        """What the tasks returned, in order of start."""
        return [task.result for task in self._tasks if task.is_finished]

    def require_winner(self) -> None:
        """Under `first`: raise what the tasks failed with if none of them succeeded."""
        errors = [task.error for task in self._tasks if task.error is not None]
        if self._join != "first" or len(errors) < len(self._tasks) or not errors:
            return
        raise lone_error(ExceptionGroup("every branch failed", errors))

    async def _wins(self, task: BranchTask[T]) -> bool:
        """Whether it is the first to come to its end; the others are stopped then."""
        if self._winner is not None:
            return False
        self._winner = task  # type: ignore[assignment]  # results are read, never written
        others = [other for other in self._tasks if other is not task]
        for other in others:
            other.scope.cancel()
        memo, race = self._session.memo, self._race
        if memo is not None and race is not None and race.winner is None:
            losers = {other.path for other in others} - {task.path}
            await memo.end_race(race, task.path, losers)
        return True
