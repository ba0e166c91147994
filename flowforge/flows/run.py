"""A run as the function of a flow sees it: chats, tools, people and branches."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from flowforge.flows.branches import run_each
from flowforge.flows.chat import Chat
from flowforge.flows.cursor import Cursor
from flowforge.flows.durations import seconds_of
from flowforge.flows.functions import step_name_of
from flowforge.flows.prompts import render_prompt
from flowforge.flows.questions import answer_in_time
from flowforge.flows.scopes import SCOPE
from flowforge.flows.values import shown_value
from flowforge.runtime.commands import StartQuestion
from flowforge.runtime.events import StepAsked

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from flowforge.flows.scopes import Scope
    from flowforge.flows.session import FlowSession
    from flowforge.flows.tool import Tool

P = ParamSpec("P")
T = TypeVar("T")
ItemT = TypeVar("ItemT")
TextT = TypeVar("TextT", bound=str)


class Run:
    """What a flow's function gets as its first argument; good until the function returns."""

    def __init__(self, session: FlowSession) -> None:
        self._session = session

    @property
    def seed(self) -> int:
        """What every generation without a seed of its own derives its seed from."""
        return self._session.seed

    @asynccontextmanager
    async def chat(
        self, *, system: str | None = None, model: str | None = None, **values: object
    ) -> AsyncGenerator[Chat]:
        """A new chat, closed at the end of the block.

        system: a template like that of `Chat.user`, with `values` for its holes; without one the
        model's own default counts. model: another than the run's, as `start` takes it; loaded when
        it is first asked for. Raises WorkflowError WF602, EngineError when it cannot be loaded.
        """
        text = None if system is None else render_prompt(system, values)
        conversation = await self._session.open(text, model)
        cursor = Cursor(self._session, SCOPE.get(), conversation)
        try:
            yield Chat(cursor)
        finally:
            await cursor.close()

    async def map(
        self,
        function: Callable[[Run, ItemT], Awaitable[T]],
        items: Iterable[ItemT],
        /,
        *,
        limit: int | None = None,
        name: str | None = None,
    ) -> list[T]:
        """Run a function for every item, each in a branch of its own; results in item order.

        Like `Chat.map`, for functions that open chats of their own. limit: branches at one time.
        The first failure cancels the others. name: of the step; else that of the function.
        """
        path = SCOPE.get().path(name or step_name_of(function))

        async def run_one(scope: Scope, item: ItemT) -> T:
            del scope  # it is that of the task
            return await function(self, item)

        with self._session.step(path, "for") as end:
            results = await run_each(self._session, path, items, limit, run_one)
            end.value = results
        return results

    async def call(self, tool: Tool[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a tool; its arguments are those of its function.

        Raises WorkflowError WF613 and ToolError TL1xx for arguments that do not fit, ToolError
        TL2xx when the function raises or its time is over.
        """
        path = SCOPE.get().path(tool.spec.name)
        with self._session.step(path, "call") as end:
            arguments = tool.arguments(*args, **kwargs)
            value = await self._session.call_tool(tool, arguments, path)
            end.value = value
        return tool.result(value)

    async def ask(
        self,
        prompt: str,
        *,
        choices: Sequence[str] = (),
        show: object = None,
        timeout: str | float | None = None,  # noqa: ASYNC109 - by the run's clock
        on_timeout: str | None = None,
        name: str = "ask",
    ) -> str:
        """Ask a person, and wait for the answer.

        choices: the answer is one of them; any text without. show: a value to put before them.
        timeout: seconds, or a text like '90s' or '2h'; on_timeout: the answer when it has passed,
        without which the step fails.
        Raises WorkflowError WF504 after the timeout, WF530 when nobody is there to be asked.
        """
        path = SCOPE.get().path(name)
        timeout_s = None if timeout is None else seconds_of(timeout)
        shown = shown_value(show)
        with self._session.step(path, "ask") as end:
            question = StartQuestion(path, prompt, tuple(choices), shown)
            self._session.stream.emit(StepAsked(path, prompt, tuple(choices), shown))
            answer = await answer_in_time(
                self._session.ask, self._session.clock, question, timeout_s, on_timeout
            )
            end.value = answer
        return answer
