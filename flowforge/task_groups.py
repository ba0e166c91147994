"""Task groups whose errors come out as they were raised."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskGroup


@asynccontextmanager
async def open_task_group() -> AsyncGenerator[TaskGroup]:
    """Run tasks beside a block. Raises what the block raises, once the tasks have ended.

    A task group by itself would wrap that in an ExceptionGroup, and so it does with what a task
    raises. An error of the block cancels nothing: the block says how its tasks end.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure


def first_error(error: BaseException) -> BaseException:
    """Of a group the error of the task that failed first; any other error as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
